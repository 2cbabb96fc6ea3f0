"""aiohttp: how its connection errors are built.

`ClientConnectorError` takes a `ConnectionKey`, whose fields are undocumented. The plain HTTP client raises
this error as aiohttp does. If the probe fails, the plain client is not used: every call goes through aiohttp.
"""

import aiohttp

from nemo_gym.undocumented.probe import Probe


def connector_error(host: str, port: int, error: OSError) -> aiohttp.ClientConnectorError:
    """The error for a host that cannot be reached. Call it only if the probe passed."""
    from aiohttp.client_reqrep import ConnectionKey

    key = ConnectionKey(
        host, port, is_ssl=False, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None
    )
    return aiohttp.ClientConnectorError(key, error)


def _check() -> bool:
    refused = OSError(111, "refused")
    error = connector_error("host.example", 81, refused)
    return (error.host, error.port, error.os_error) == ("host.example", 81, refused) and (
        "host.example:81" in str(error)
    )


probe = Probe("aiohttp", _check)
