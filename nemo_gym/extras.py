"""Packages that only some users need. They are loaded here and nowhere else, when they are first used."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from nemo_gym.errors import ConfigError


def load_extra(module: str, extra: str, purpose: str) -> Any:
    """A module of an optional package; where it cannot be had, an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        message = missing_extra(module, extra, purpose)
        if message is None:  # it is there, but something that it needs is not
            message = f"{purpose}: {module} cannot be loaded: {error}; {_remedy(extra)}"
        raise ConfigError(message) from error


def missing_extra(module: str, extra: str, purpose: str) -> str | None:
    """What `load_extra` would say of a package that is not installed, without loading it; else None."""
    package = module.partition(".")[0]
    if find_spec(package) is not None:
        return None
    return f"{purpose} needs the package {package}; {_remedy(extra)}"


def _remedy(extra: str) -> str:
    return f"install it with: pip install 'nemo-gym[{extra}]'"
