"""The output of a child process as lines without secrets, not even parts of one."""

import asyncio
from collections.abc import Callable, Collection
from typing import IO

from nemo_gym.config import redact
from nemo_gym.terminal import safe_text

_CHUNK = 65_536
_LONGEST = 65_536
"""Bytes after which a line is split."""
_LONGEST_URL = 1_024
"""The longest URL in which credentials are recognised across a split, in characters."""


class LogLines:
    """Takes bytes as they arrive, returns complete lines."""

    def __init__(self, secrets: Collection[str]) -> None:
        self._secrets = secrets
        self._rest = b""
        self._kept_back = max(map(len, secrets), default=0) + _LONGEST_URL
        """How much of a split line waits for the next bytes, because a secret may begin there."""

    def feed(self, data: bytes) -> list[str]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            lines.append(self._cut())
        return [self._shown(line) for line in lines]

    def end(self) -> list[str]:
        """The last line, if no newline ended it."""
        rest, self._rest = self._rest, b""
        return [self._shown(rest)] if rest else []

    def _cut(self) -> bytes:
        text = redact(self._rest.decode("utf-8", "surrogateescape"), self._secrets)
        self._rest = text[-self._kept_back :].encode("utf-8", "surrogateescape")
        return text[: -self._kept_back].encode("utf-8", "surrogateescape")

    def _shown(self, line: bytes) -> str:
        return safe_text(redact(line.decode("utf-8", "replace").rstrip(), self._secrets))


async def take_lines(output: IO[bytes], secrets: Collection[str], take: Callable[[str], None]) -> None:
    """Pass on every line from a pipe until its other end is closed; closes it."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), output
    )
    lines = LogLines(secrets)
    try:
        while data := await reader.read(_CHUNK):
            for line in lines.feed(data):
                take(line)
        for line in lines.end():
            take(line)
    finally:
        transport.close()
