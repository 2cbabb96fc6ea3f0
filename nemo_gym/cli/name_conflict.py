"""Warns if the distribution `nemo-gym` is installed too: both install the import package `nemo_gym`."""

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from nemo_gym.cli.output import complain

OTHER_DISTRIBUTION = "nemo-gym"
_METADATA = re.compile(r"nemo_gym(-.*)?\.(dist|egg)-info")
"""The name of its metadata folder."""


@cache
def warn_of_other_distribution() -> None:
    """Print the warning once per process."""
    if is_installed(sys.path):
        complain(conflict_message())


def is_installed(search_path: Sequence[str]) -> bool:
    """Whether `nemo-gym` has metadata on the path. Reads only folder names: every command waits for it."""
    for folder in search_path:
        with suppress(OSError):
            if any(map(_METADATA.fullmatch, os.listdir(folder or "."))):
                return True
    return False


def conflict_message() -> str:
    from nemo_gym.extras import DISTRIBUTION, WHEEL, reinstall_command

    uninstall, install = f"pip uninstall -y {OTHER_DISTRIBUTION} {DISTRIBUTION}", reinstall_command()
    if install is not None:
        solution = f"Run: {uninstall} && {install}"
    else:
        solution = f"Find the file {WHEEL} or build it again; then run: {uninstall}, and install the file"
    return (
        f"warning: the distribution {OTHER_DISTRIBUTION} is also installed in this environment. "
        f"It is another project, or {DISTRIBUTION} under its old name; both contain the package nemo_gym. "
        f"{solution}"
    )
