"""A blocking GET, for code that has no event loop yet."""

import urllib.error
import urllib.request
from http.client import HTTPException

from nemo_gym.errors import HeadServerUnreachableError


def fetch_text(url: str, *, timeout_s: float = 5.0) -> str:
    """The text of a head server's page."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as response:
            text: str = response.read().decode()
            return text
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        reason = getattr(error, "reason", error)
        raise HeadServerUnreachableError(
            f"no head server at {url}: {reason}; start one with "
            "ng_run '+config_paths=[...]', or give its address with +head_server.host=… +head_server.port=…"
        ) from error
