"""The table of executors."""

import pytest

from nemo_gym.client import ServerClient
from nemo_gym.errors import ConfigError
from nemo_gym.rollout_collection.collection_policy import CollectionPolicy
from nemo_gym.rollout_collection.display.dry_run import dry_run
from nemo_gym.rollout_collection.execution.executor_table import EXECUTORS, executor_named
from nemo_gym.rollout_collection.run_servers import Servers
from tests.support.scripted_agent import Playground


def test_unknown_executor_is_an_error_that_lists_the_known_ones(playground: Playground) -> None:
    assert set(EXECUTORS) == {"local", "processes"}
    expected = r"executor: 'ray' is not an executor; choose one of: local, processes"
    with pytest.raises(ConfigError, match=expected):
        executor_named("ray")
    with pytest.raises(ConfigError, match=expected):
        playground.collect(executor="ray")
    with pytest.raises(ConfigError, match=expected):
        dry_run(playground.config(executor="ray"), None, CollectionPolicy(roots=()))
    assert not playground.output.parent.exists()


def test_worker_processes_cannot_use_servers_of_this_process(playground: Playground) -> None:
    playground.collect()
    before = playground.names()
    for is_dry in (True, False):
        with pytest.raises(ConfigError, match="cannot use servers that are open in this process"):
            playground.collect(executor="processes", dry_run=is_dry)
    assert playground.names() == before, "the earlier run is not set aside"


def test_num_workers_is_reported_as_unused_without_worker_processes(playground: Playground) -> None:
    config = playground.config(num_workers=3)
    servers = Servers({}, running=ServerClient())
    assert "num_workers has no effect" in executor_named("local").where(config, servers)
    assert "3 worker processes" in executor_named("processes").where(config, servers)
