"""What other programs did to a file while a run was writing it."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.journal import Journal


@dataclass(frozen=True)
class Interference:
    """A change of a journal that is not the work of its writer."""

    what: str
    moved_to: Path | None = None
    """Where the file of the journal is now, if it was renamed and that is known."""


def interference(journal: Journal) -> Interference | None:
    """How the file differs from what the journal has written; None if it does not, or cannot be seen.

    Compares the identity and the size of the file, so it must not run at the same time as `append`.
    """
    mine = os.fstat(journal.descriptor)
    try:
        found = os.stat(journal.place)
    except (FileNotFoundError, NotADirectoryError):
        return _removed(journal, mine, "")
    except OSError:
        return None  # a network file system that does not respond at the moment
    if not os.path.samestat(mine, found):
        return _removed(journal, mine, ", and another file has its name now")
    if found.st_size < journal.size:
        return Interference(f"was cut from {journal.size} to {found.st_size} bytes")
    if found.st_size > journal.size:
        return Interference(f"grew by {found.st_size - journal.size} bytes that this run did not write")
    return None


def _removed(journal: Journal, mine: os.stat_result, addition: str) -> Interference:
    if not mine.st_nlink:
        return Interference(f"was deleted{addition}")
    moved_to = None
    with suppress(OSError):  # only Linux has this
        moved_to = Path(os.readlink(f"/proc/self/fd/{journal.descriptor}"))
    return Interference(f"was renamed{f' to {moved_to}' if moved_to else ''}{addition}", moved_to)
