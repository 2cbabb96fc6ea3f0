"""The body of a response as it arrives: decompressed piece by piece, and never larger than the limit."""

import zlib
from typing import Any

import aiohttp

from nemo_gym.http.size_limits import TooLargeError

ACCEPTED_CODINGS = "gzip, deflate"
_GZIP_MAGIC = b"\x1f\x8b"


class ResponseBody:
    """Takes the pieces of a body; `whole` returns it."""

    __slots__ = ("_coding", "_inflater", "_limit", "_parts", "_size")

    def __init__(self, coding: str, limit: int) -> None:
        """`coding`: the value of the header Content-Encoding."""
        self._coding = coding.strip().lower()
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._inflater: Any = None

    def feed(self, data: bytes) -> None:
        if not self._coding or self._coding == "identity":
            self._add(data)
        elif data:
            try:
                self._inflate(data)
            except zlib.error as error:
                raise _unreadable(str(error)) from error

    def whole(self) -> bytes:
        if self._inflater is not None and not self._inflater.eof:
            raise _unreadable("incomplete or truncated stream")
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            raise TooLargeError("response_bytes")
        self._parts.append(piece)

    def _inflate(self, data: bytes) -> None:
        if self._inflater is None:
            self._inflater = _inflater(self._coding, data)
        while data:
            self._add(self._inflater.decompress(data, self._limit - self._size + 1))
            data = self._inflater.unconsumed_tail
            if self._inflater.eof:
                data = self._inflater.unused_data
                if not data.startswith(_GZIP_MAGIC):  # anything else after the end is ignored
                    return
                self._inflater = _inflater(self._coding, data)


def _inflater(coding: str, data: bytes) -> Any:
    if coding in ("gzip", "x-gzip"):
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    if coding == "deflate":  # some servers leave out the header of zlib
        return zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS)
    raise _unreadable(f"its coding is {coding!r}, and only {ACCEPTED_CODINGS} were offered")


def _unreadable(reason: str) -> aiohttp.ClientPayloadError:
    return aiohttp.ClientPayloadError(f"the response cannot be decompressed: {reason}")
