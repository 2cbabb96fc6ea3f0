"""The environment variables that this project reads or sets. No other module does either."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from nemo_gym.errors import ConfigError

_EXTRA_ROOTS = "NEMO_GYM_EXTRA_ROOTS"
_MAX_ROLLOUT_ATTEMPTS = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"
ACCESS_TOKEN_VARIABLE = "NEMO_GYM_ACCESS_TOKEN"
_CACHE_HOME = "XDG_CACHE_HOME"
_FORCE_FALLBACK = "NEMO_GYM_FORCE_FALLBACK"
_POLICY_API_KEY = "POLICY_API_KEY"
_SECRETS = frozenset({ACCESS_TOKEN_VARIABLE, _POLICY_API_KEY})


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


def access_token() -> str | None:
    """The token for servers that listen beyond their machine."""
    return os.environ.get(ACCESS_TOKEN_VARIABLE, "").strip() or None


def user_cache_dir() -> Path:
    """This user's cache folder, shared by all projects."""
    home = os.environ.get(_CACHE_HOME, "").strip()
    return (Path(home) if Path(home).is_absolute() else Path("~/.cache").expanduser()) / "nemo_gym"


def policy_api_key() -> str | None:
    """The key of the policy's endpoint, which keeps it out of files and of the list of processes."""
    return os.environ.get(_POLICY_API_KEY) or None


def forget_policy_api_key() -> None:
    """Remove the key once it has been read, so that no process that is started from here inherits it."""
    os.environ.pop(_POLICY_API_KEY, None)


def child_environment(roots: Sequence[Path] = ()) -> dict[str, str]:
    """The environment for our own child processes, which get their secrets through a pipe.

    They look for components and data in `roots` too.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    return {**kept, _EXTRA_ROOTS: os.pathsep.join(map(str, roots))} if roots else kept


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
