"""Uninstall `nemo-gym` if it is this checkout, installed before the distribution was renamed to `handspring`.

The Makefile runs it before it installs. Another project of that name is not touched.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

OLD_NAME = "nemo-gym"
CHECKOUT = Path(__file__).resolve().parent.parent


def is_this_checkout(installed: Iterable[Distribution]) -> bool:
    origins = (json.loads(found.read_text("direct_url.json") or "{}").get("url") for found in installed)
    return CHECKOUT.as_uri() in origins


def main() -> int:
    if not is_this_checkout(distributions(name=OLD_NAME)):
        return 0
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    return subprocess.run([*pip, "uninstall", "--yes", OLD_NAME], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
