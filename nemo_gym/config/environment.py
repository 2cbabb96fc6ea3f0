"""The environment variables this project reads. Nothing else in it reads any."""

import os
from pathlib import Path

from nemo_gym.errors import ConfigError

_EXTRA_ROOTS = "NEMO_GYM_EXTRA_ROOTS"
_MAX_ROLLOUT_ATTEMPTS = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"
_CACHE_HOME = "XDG_CACHE_HOME"


def extra_roots() -> tuple[Path, ...]:
    """The folders of NEMO_GYM_EXTRA_ROOTS, in the order given."""
    texts = os.environ.get(_EXTRA_ROOTS, "").split(os.pathsep)
    return tuple(Path(text).expanduser() for text in texts if text.strip())


def max_rollout_attempts(default: int = 3) -> int:
    """How often a rollout with data failures is tried, over all runs."""
    text = os.environ.get(_MAX_ROLLOUT_ATTEMPTS, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"environment variable {_MAX_ROLLOUT_ATTEMPTS}={text!r}: must be a whole number >= 1"
        )
    return int(text)


def user_cache_dir() -> Path:
    """Where this user keeps what can be had again, over all projects."""
    home = os.environ.get(_CACHE_HOME, "").strip()
    return (Path(home) if Path(home).is_absolute() else Path("~/.cache").expanduser()) / "nemo_gym"
