"""`make test`: the tests in two processes, since whole runs mostly wait; what the second says comes last.

Arguments are handed to both.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

WHOLE_RUNS = ("tests/e2e",)
ALL_OTHERS = ("--ignore=tests/e2e",)


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
