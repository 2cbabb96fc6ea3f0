"""Limits of the operating system."""

import gc
import resource
from contextlib import suppress

_ENOUGH_FILES = 1_048_576
"""The soft limit to ask for if there is no hard limit; some systems refuse an unlimited soft limit."""


def raise_file_limit() -> None:
    """Allow as many open files as the system permits: every rollout in flight holds some connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else hard
    while soft < wanted:
        with suppress(ValueError, OSError):  # macOS reports no hard limit and still has one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return
        wanted //= 2


def collect_garbage_less() -> None:
    """Collect garbage less often, in a process that plays many rollouts.

    Rollouts leave few reference cycles, and searching for them takes a fifth of the time. Objects that exist
    now are kept and not searched again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
