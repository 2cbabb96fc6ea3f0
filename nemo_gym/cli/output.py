"""All that commands print. No text can control the terminal, wherever it comes from."""

import json
import sys
from typing import Any

from nemo_gym.codec import encode_json
from nemo_gym.terminal import is_safe, safe_text


def say(text: object = "", *, flush: bool = False) -> None:
    """Print to standard output."""
    print(safe_text(str(text)), flush=flush)


def complain(text: object) -> None:
    """Print to standard error."""
    print(safe_text(str(text)), file=sys.stderr, flush=True)


def say_json(data: Any, *, allow_nan: bool = True, flush: bool = False) -> None:
    """Print as JSON, with every character outside of ASCII as an escape."""
    print(json.dumps(data, indent=2, allow_nan=allow_nan).replace("\x7f", "\\u007f"), flush=flush)


def json_line(data: Any) -> str:
    """The data as one line of JSON; in ASCII if it would not be safe to show otherwise."""
    text = encode_json(data).decode()
    return text if is_safe(text) else json.dumps(data).replace("\x7f", "\\u007f")


def say_yaml(text: str, ascii_text: str) -> None:
    """Print a YAML document; its form in ASCII if the other one would not be safe to show."""
    print(text if is_safe(text) else ascii_text, end="")
