"""The environment variables that this project reads or sets. No other module does either."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nemo_gym.errors import ConfigError

_EXTRA_ROOTS = "NEMO_GYM_EXTRA_ROOTS"
_MAX_ROLLOUT_ATTEMPTS = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"
_CACHE_HOME = "XDG_CACHE_HOME"
_FORCE_FALLBACK = "NEMO_GYM_FORCE_FALLBACK"


def extra_roots() -> tuple[Path, ...]:
    """The folders of NEMO_GYM_EXTRA_ROOTS, in the order given."""
    texts = os.environ.get(_EXTRA_ROOTS, "").split(os.pathsep)
    return tuple(Path(text).expanduser() for text in texts if text.strip())


def max_rollout_attempts(default: int = 3) -> int:
    """How often a rollout with data failures is tried, across all runs."""
    text = os.environ.get(_MAX_ROLLOUT_ATTEMPTS, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"environment variable {_MAX_ROLLOUT_ATTEMPTS}={text!r}: must be a whole number >= 1"
        )
    return int(text)


def user_cache_dir() -> Path:
    """This user's cache folder, shared by all projects."""
    home = os.environ.get(_CACHE_HOME, "").strip()
    return (Path(home) if Path(home).is_absolute() else Path("~/.cache").expanduser()) / "nemo_gym"


def is_variable_set(name: str) -> bool:
    return name in os.environ


def forced_fallbacks() -> frozenset[str]:
    """Libraries of which only documented APIs are used: a comma-separated list, or `all`."""
    return frozenset(name.strip() for name in os.environ.get(_FORCE_FALLBACK, "").split(",") if name.strip())


@contextmanager
def variables_set(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for another library, except those that the user has set."""
    ours = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
