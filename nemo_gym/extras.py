"""Packages that only some users need: loaded when first used, with an error that says how to install them."""

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from nemo_gym import PARENT_DIR, __version__
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import Distribution

DISTRIBUTION = "handspring"
"""The name in pip's metadata. It is not on the package index: users install a checkout or a wheel file."""


def load_extra(module: str, extra: str, purpose: str) -> Any:
    """A module of an optional package; if it cannot be imported, an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        message = missing_extra(module, extra, purpose)
        if message is None:  # installed, but one of its own dependencies is missing
            message = f"{purpose}: cannot import {module}: {error}; {_remedy(extra)}"
        raise ConfigError(message) from error


def missing_extra(module: str, extra: str, purpose: str) -> str | None:
    """The message of `load_extra` if the package is not installed, else None; does not import the package."""
    package = module.partition(".")[0]
    if find_spec(package) is not None:
        return None
    return f"{purpose} needs the package {package}; {_remedy(extra)}"


def install_command(extra: str | None = None, home: Path = PARENT_DIR) -> str:
    """The pip command that installs this distribution again, or adds an extra to it.

    `home` is the folder that contains the package. If it is a checkout, the command installs the checkout.
    Otherwise an extra is installed by its requirements, because the wheel file may no longer exist.
    """
    if _is_checkout(home):
        place = "." if Path.cwd() == home else str(home)
        return f"pip install -e {quote(f'{place}[{extra}]' if extra else place)}"
    if extra and (requirements := _requirements(extra, home)):
        return f"pip install {join(requirements)}"
    wheel = _wheel(home)
    return f"pip install {quote(f'{wheel}[{extra}]' if extra else wheel)}"


def _remedy(extra: str) -> str:
    return f"install it with: {install_command(extra)}"


def _is_checkout(home: Path) -> bool:
    project = home / "pyproject.toml"
    return project.is_file() and f'\nname = "{DISTRIBUTION}"' in project.read_text()


def _requirements(extra: str, home: Path) -> list[str]:
    """The requirements of an extra, from the metadata next to the installed package."""
    installed = _installed(home)
    split = [line.partition(";") for line in (installed.requires or [] if installed else [])]
    return [name.strip() for name, _, marker in split if marker.strip() == f"extra == '{extra}'"]


def _wheel(home: Path) -> str:
    """The file that pip installed, if pip recorded it and the file still exists; else only its name."""
    installed = _installed(home)
    origin = json.loads((installed and installed.read_text("direct_url.json")) or "{}").get("url", "")
    file = Path(unquote(urlsplit(origin).path))
    if origin.startswith("file:") and file.suffix == ".whl" and file.is_file():
        return str(file)
    return f"{DISTRIBUTION}-{__version__}-py3-none-any.whl"


def _installed(home: Path) -> "Distribution | None":
    from importlib.metadata import distributions  # slow to import, and needed only for a message

    return next(iter(distributions(name=DISTRIBUTION, path=[str(home)])), None)
