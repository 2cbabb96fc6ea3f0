"""`make test`: runs the tests in two processes, because whole runs mostly wait.

Both get the arguments of this script. The output of the second is printed at the end.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

TRAINING = {"test_grpo.py", "test_gym_groups.py"}
"""Whole runs that compute instead of waiting: they run with the other tests, so that both take as long."""
WHOLE_RUNS = sorted(str(file) for file in Path("tests/e2e").glob("test_*.py") if file.name not in TRAINING)
ALL_OTHERS = [f"--ignore={file}" for file in WHOLE_RUNS]


def start(arguments: Sequence[str], output: IO[bytes] | None = None) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "pytest", *arguments, *sys.argv[1:]]
    return subprocess.Popen(command, stdout=output, stderr=output)


def main() -> int:
    with tempfile.TemporaryFile() as kept:
        others = start(ALL_OTHERS, kept)
        try:
            codes = [start(WHOLE_RUNS).wait(), others.wait()]
        finally:
            others.terminate()
        kept.seek(0)
        sys.stdout.buffer.write(kept.read())
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
