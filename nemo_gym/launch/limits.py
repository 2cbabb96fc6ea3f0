"""Limits of the operating system."""

import gc
import resource

_ENOUGH_FILES = 1_048_576
"""Where the hard limit is unlimited: some systems refuse that as a soft limit."""


def raise_file_limit() -> None:
    """As many open files as this process may have: every rollout in flight holds some connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else hard
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def collect_garbage_less() -> None:
    """For a process that plays many rollouts: they leave few cycles, and looking for them costs a fifth.

    What is there when it is called stays, and is not looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
