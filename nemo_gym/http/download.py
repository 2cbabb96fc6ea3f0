"""A file over HTTP, for commands: what an interrupted download has is kept, and the next goes on there."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

_CHUNK = 2**18
_TIMEOUT_S = 60.0

Progress = Callable[[int, int | None], None]
"""Takes the bytes that are there and those that there will be, if that is known."""


def download(url: str, part: Path, on_progress: Progress, *, ca_file: str | None = None) -> None:
    """Fill `part` to its end. Raises OSError where that fails; what is there by then stays."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    context = ssl.create_default_context(cafile=ca_file) if url.startswith("https:") else None
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # nothing beyond what is there
            return
        raise
    with answer, part.open("ab" if answer.status == 206 else "wb") as file:
        have = file.tell()
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        while data := answer.read(_CHUNK):
            file.write(data)
            have += len(data)
            on_progress(have, total)
    if total is not None and have < total:
        raise OSError(f"the connection ended after {have} of {total} bytes")
