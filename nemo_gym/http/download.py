"""Downloads of files, for commands. An interrupted download can be continued."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from errno import EFBIG
from pathlib import Path

_CHUNK = 2**18
_TIMEOUT_S = 60.0
_LONGEST = 64 * 2**30
"""Bytes. A file that is larger is not one of weights."""

Progress = Callable[[int, int | None], None]
"""Takes the number of bytes so far, and in total if known."""


def download(url: str, part: Path, on_progress: Progress, *, ca_file: str | None = None) -> None:
    """Download the rest of the file `part`. Raises OSError on failure; the bytes received so far are kept."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    context = ssl.create_default_context(cafile=ca_file) if url.startswith("https:") else None
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # the file is complete
            return
        raise
    with response, part.open("ab" if response.status == 206 else "wb") as file:
        have = file.tell()
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        while data := response.read(_CHUNK):
            file.write(data)
            have += len(data)
            if have > _LONGEST:
                raise OSError(EFBIG, f"{url} is larger than {_LONGEST // 2**30} GB")
            on_progress(have, total)
    if total is not None and have < total:
        raise OSError(f"the connection ended after {have} of {total} bytes")
