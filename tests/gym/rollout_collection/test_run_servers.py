"""The client of the servers that a run uses."""

from collections.abc import Iterator

import pytest

from nemo_gym.client import ServerClient, current_client
from nemo_gym.http.transport_choice import client_settings, is_plain_enabled
from nemo_gym.rollout_collection.run_servers import setup_client


@pytest.fixture(autouse=True)
def setting_restored() -> Iterator[None]:
    with client_settings({}):
        yield


def plain_client_is_used(of_command: dict[str, bool] | None = None, **settings: bool) -> bool:
    token = current_client.set(ServerClient(global_config_dict=settings))
    try:
        setup_client(None, of_command or {})
    finally:
        current_client.reset(token)
    return is_plain_enabled()


def test_plain_client_is_off_if_the_command_or_the_servers_switch_it_off() -> None:
    assert plain_client_is_used()
    assert not plain_client_is_used(plain_http_client=False)
    assert not plain_client_is_used({"plain_http_client": False})
    assert not plain_client_is_used({"plain_http_client": False}, plain_http_client=True)


def test_plain_client_is_used_again_after_a_run_that_switched_it_off() -> None:
    assert not plain_client_is_used(plain_http_client=False)
    assert plain_client_is_used(plain_http_client=True)
