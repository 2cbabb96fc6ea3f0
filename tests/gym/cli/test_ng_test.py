"""`ng_test` where its packages are missing."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.commands import ROOT


def test_missing_pytest_is_one_message_with_the_command_that_installs_it(tmp_path: Path) -> None:
    for folder in (Path(entry) for entry in sys.path if entry.endswith("site-packages")):
        for package in folder.iterdir():
            if not package.name.startswith(("pytest", "_pytest")) and not (tmp_path / package.name).exists():
                (tmp_path / package.name).symlink_to(package)
    code = "import sys; from nemo_gym.cli.main import main; sys.argv[0] = 'ng_test'; main()"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, "+entrypoint=resources_servers/calculator"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    message = f"ng_test needs pytest, which is not installed; run: {sys.executable} -m pip install pytest"
    assert done.stderr.splitlines()[-1] == f"ConfigError: {message}"
