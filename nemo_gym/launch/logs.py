"""What a server process writes, as lines that may be shown: no secret stands in them, not even in parts."""

from collections.abc import Collection

from nemo_gym.config import redact

_LONGEST = 65_536
"""Bytes after which a line is shown in pieces."""
_LONGEST_URL = 1_024
"""Characters within which the credentials of a URL are recognised."""


class LogLines:
    """Bytes in as they come, lines out when they are whole."""

    def __init__(self, secrets: Collection[str]) -> None:
        self._secrets = secrets
        self._rest = b""
        self._kept_back = max(map(len, secrets), default=0) + _LONGEST_URL
        """Of a line in pieces, what waits for the next bytes: a secret may have begun there."""

    def feed(self, data: bytes) -> list[str]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            lines.append(self._cut())
        return [self._shown(line) for line in lines]

    def end(self) -> list[str]:
        """The last line, if it was left without an end."""
        rest, self._rest = self._rest, b""
        return [self._shown(rest)] if rest else []

    def _cut(self) -> bytes:
        text = redact(self._rest.decode("utf-8", "surrogateescape"), self._secrets)
        self._rest = text[-self._kept_back :].encode("utf-8", "surrogateescape")
        return text[: -self._kept_back].encode("utf-8", "surrogateescape")

    def _shown(self, line: bytes) -> str:
        return redact(line.decode("utf-8", "replace").rstrip(), self._secrets)
