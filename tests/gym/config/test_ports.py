import socket
from collections.abc import Iterator

import pytest

from nemo_gym.config import assign_ports, fill_ports, find_open_port
from nemo_gym.errors import ConfigError
from tests.gym.config.conftest import Load

CALC = "calc.resources_servers.calculator"
MODEL = "policy_model.responses_api_models.openai_model"
POLICY = ("+policy_base_url=x", "+policy_api_key=k")


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_open_port_is_in_range_free_and_allowed(busy_port: int) -> None:
    assert 10001 <= find_open_port() <= 20000
    low, high = busy_port, busy_port + 2
    assert find_open_port(low, high, disallowed=[busy_port + 1]) == busy_port + 2


def test_no_open_port_is_an_error_with_the_range(busy_port: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"no free port on 127\.0\.0\.1 in {busy_port}\.\.{busy_port}.*port_range_low"
    ):
        find_open_port(busy_port, busy_port)
    with pytest.raises(ConfigError, match=r"port range 9\.\.8: needs"):
        find_open_port(9, 8)


def test_every_server_gets_its_own_port_that_is_not_the_head_servers(two_files: str, load: Load) -> None:
    low = find_open_port()
    config = assign_ports(
        load(
            two_files,
            *POLICY,
            f"+port_range_low={low}",
            f"+port_range_high={min(low + 30, 65535)}",
            f"+head_server.port={low}",
            f"+disallowed_ports=[{low + 1},{low + 2}]",
        )
    )
    ports = {server.port for server in config.servers}
    assert len(ports) == 3
    assert all(port is not None and low + 2 < port <= low + 30 for port in ports)
    for server in config.servers:
        block = config.values[server.name][server.kind][server.implementation]
        assert (block.host, block.port) == (server.host, server.port)
        assert server.host == "127.0.0.1"
        assert "worker_ports" not in block


def test_each_worker_gets_its_own_port(two_files: str, load: Load) -> None:
    given = find_open_port()
    config = assign_ports(load(two_files, *POLICY, f"+{CALC}.num_workers=3", f"+{CALC}.port={given}"))
    workers = config.server("calc").settings["worker_ports"]
    assert workers[0] == config.server("calc").port == given
    others = [server.port for server in config.servers if server.name != "calc"]
    assert len({*workers, *others}) == 5


def test_default_host_applies_to_servers_without_their_own_host(two_files: str, load: Load) -> None:
    config = assign_ports(load(two_files, *POLICY, "+default_host=localhost", f"+{CALC}.host=127.0.0.1"))
    assert [server.host for server in config.servers] == ["127.0.0.1", "localhost", "localhost"]
    assert config.head_server.host == "127.0.0.1"


def test_given_port_in_use_is_an_error_with_holder_and_fix(
    two_files: str, load: Load, busy_port: int
) -> None:
    config = load(two_files, *POLICY, f"+{CALC}.port={busy_port}")
    with pytest.raises(ConfigError) as caught:
        assign_ports(config)
    assert f"calc: port 127.0.0.1:{busy_port} is in use" in str(caught.value)
    assert f"`lsof -i :{busy_port}`" in str(caught.value)
    assert f"set another with +{CALC}.port=<port>" in str(caught.value)
    assert caught.value.exit_code == 2
    assert fill_ports(config).server("calc").port == busy_port


def test_one_port_for_two_servers_is_an_error(two_files: str, load: Load) -> None:
    port = find_open_port()
    with pytest.raises(
        ConfigError, match=rf"policy_model: port .*:{port} is already used by calc; set another with \+policy"
    ):
        assign_ports(load(two_files, *POLICY, f"+{CALC}.port={port}", f"+{MODEL}.port={port}"))
    with pytest.raises(ConfigError, match="is already used by the head server"):
        assign_ports(load(two_files, *POLICY, f"+{CALC}.port={port}", f"+head_server.port={port}"))


def test_host_of_another_machine_is_an_error_with_its_name(two_files: str, load: Load) -> None:
    with pytest.raises(ConfigError, match=r"host '192\.0\.2\.1' is not an address of this machine"):
        assign_ports(load(two_files, *POLICY, "+default_host='192.0.2.1'"))


def test_wrong_settings_are_reported_together(two_files: str, load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load(two_files, *POLICY, "+port_range_low=0", "+head_server.port=x")
    assert "port_range_low: 0 is not allowed" in str(caught.value)
    assert "head_server.port: x is not allowed" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load(two_files, *POLICY, "+port_range_lo=0", "+disallowed_port=3")
    assert "port_range_lo: unknown; did you mean +port_range_low=0?" in str(caught.value)
    assert "disallowed_port: unknown; did you mean +disallowed_ports=3?" in str(caught.value)
