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


WHEEL = f"{DISTRIBUTION}-{__version__}-py3-none-any.whl"
"""The name of the wheel file."""


def install_command(extra: str, home: Path = PARENT_DIR) -> str:
    """The pip command that adds an extra to this distribution.

    `home` is the folder that contains the package. If it is a checkout, the command installs the checkout.
    Otherwise the extra is installed by its requirements, because the wheel file may no longer exist.
    """
    if not _is_checkout(home) and (requirements := _requirements(extra, home)):
        return f"pip install {join(requirements)}"
    return _command(_source(home) or WHEEL, extra)


def reinstall_command(home: Path = PARENT_DIR) -> str | None:
    """The pip command that installs this distribution again; None if its wheel cannot be found."""
    source = _source(home)
    return _command(source) if source is not None else None


def _command(source: str, extra: str = "") -> str:
    option = "" if source.endswith(".whl") else "-e "
    return f"pip install {option}{quote(f'{source}[{extra}]' if extra else source)}"


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


def _source(home: Path) -> str | None:
    """What this distribution was installed from: a checkout, or a wheel that pip recorded and that exists."""
    if _is_checkout(home):
        return "." if Path.cwd() == home else str(home)
    installed = _installed(home)
    origin = json.loads((installed and installed.read_text("direct_url.json")) or "{}").get("url", "")
    address = urlsplit(origin)
    if not address.path.endswith(".whl"):
        return None
    if address.scheme in ("http", "https"):
        return str(origin)
    file = Path(unquote(address.path))
    return str(file) if address.scheme == "file" and file.is_file() else None


def _installed(home: Path) -> "Distribution | None":
    from importlib.metadata import distributions  # slow to import, and needed only for a message

    return next(iter(distributions(name=DISTRIBUTION, path=[str(home)])), None)
