"""Where servers listen."""

import socket

import pytest

from nemo_gym.servers.serve import listen


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", pytest.param("::1", id="IPv6")])
def test_server_listens_on_the_configured_address(host: str) -> None:
    try:
        listener = listen(host, 0)
    except OSError:
        if host != "::1":
            raise
        pytest.skip("this machine has no IPv6")
    with listener, socket.create_connection(listener.getsockname()[:2], timeout=30) as connection:
        assert connection.getpeername()[1] == listener.getsockname()[1]
