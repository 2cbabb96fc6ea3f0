"""The processes of local engines."""

from contextlib import suppress
from pathlib import Path

from tests.support.commands import descendants_of

_MARK = b"nemo_gym.local_engine.engine_main"


def engines_below(pid: int) -> list[int]:
    """The engines among the descendants of a process."""
    found = []
    for descendant in descendants_of(pid):
        with suppress(OSError):
            if _MARK in Path(f"/proc/{descendant}/cmdline").read_bytes():
                found.append(descendant)
    return found
