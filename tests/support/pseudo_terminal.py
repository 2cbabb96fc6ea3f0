"""Runs a command on a pseudo-terminal of a given width."""

import errno
import fcntl
import os
import pty
import struct
import subprocess
import termios
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import BIN

LINES = 30


@dataclass(frozen=True)
class Shown:
    """What a command wrote to its terminal."""

    code: int
    text: str

    def lines_from(self, beginning: str) -> list[str]:
        """The lines from the last one that begins like this."""
        lines = self.text.splitlines()
        places = [place for place, line in enumerate(lines) if line.startswith(beginning)]
        assert places, self.text
        return lines[places[-1] :]


def run_on_terminal(*arguments: str, cwd: Path, columns: int) -> Shown:
    """Run one command to its end."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [str(BIN / arguments[0]), *arguments[1:]]
    with subprocess.Popen(command, cwd=cwd, env=env, stdin=writer, stdout=writer, stderr=writer) as process:
        os.close(writer)
        text = _read_all(reader)
    return Shown(process.returncode, text.decode().replace("\r\n", "\n"))


def _read_all(reader: int) -> bytes:
    pieces = []
    with open(reader, "rb", 0) as terminal:
        try:
            while piece := terminal.read(65536):
                pieces.append(piece)
        except OSError as error:
            if error.errno != errno.EIO:  # the other end is closed
                raise
    return b"".join(pieces)
