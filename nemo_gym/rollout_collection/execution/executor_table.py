"""The executors by name.

An executor decides which servers it needs: open in this process, or hosted by its workers.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from nemo_gym.activity import EndpointLimits
from nemo_gym.client import ServerClient
from nemo_gym.config import dump_config, secret_values
from nemo_gym.endpoint_health import RunEndpoints
from nemo_gym.errors import ConfigError
from nemo_gym.http import RetryPolicy
from nemo_gym.machine import available_cores
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.execution.attempt import Attempt
from nemo_gym.rollout_collection.execution.dispatch import RolloutPolicy
from nemo_gym.rollout_collection.execution.executor import Executor
from nemo_gym.rollout_collection.execution.local import LocalExecutor
from nemo_gym.rollout_collection.execution.pool import PoolPolicy, WorkerPool, shares_of
from nemo_gym.rollout_collection.execution.socket_link import start_worker_process
from nemo_gym.rollout_collection.execution.worker import WorkerSetup
from nemo_gym.rollout_collection.run_servers import Servers

_LONGEST_BACKOFF_S = 60.0
_RETRY_TOTAL_S = 24 * 3600.0
_SILENCE_S = 30.0


@dataclass(frozen=True)
class OpenedExecutor:
    """An executor with its servers open."""

    executor: Executor
    servers: Servers
    """Those of the run; the ones that all workers share are marked as running elsewhere."""
    client: ServerClient | None = None
    """The client of the servers, if they are open in this process."""
    run: str = ""
    """Identifies the run to servers in other processes."""


@dataclass(frozen=True)
class ExecutorKind:
    """One entry of the table."""

    open: Callable[[RolloutCollectionConfig, Servers, int], AbstractAsyncContextManager[OpenedExecutor]]
    """Opens the executor and the servers that it needs, for this many rollouts."""
    where: Callable[[RolloutCollectionConfig, Servers], str]
    """Says where the servers are hosted, for the description of a run."""
    check: Callable[[Servers], None] = lambda servers: None
    """Raises ConfigError for servers that this executor cannot use."""


def executor_named(name: str) -> ExecutorKind:
    if name not in EXECUTORS:
        names = ", ".join(EXECUTORS)
        raise ConfigError(f"executor: {name!r} is not an executor; choose one of: {names}")
    return EXECUTORS[name]


@asynccontextmanager
async def _open_local(
    config: RolloutCollectionConfig, servers: Servers, to_run: int
) -> AsyncIterator[OpenedExecutor]:
    run = uuid4().hex
    async with servers.open() as client:
        ceiling = _adaptive_ceiling(config)
        limits = EndpointLimits(ceiling) if ceiling else None
        secrets = secret_values(servers.values)
        attempt = Attempt(
            client,
            config.call_timeout_s,
            config.rollout_timeout_s,
            limits,
            secrets,
            RunEndpoints(run),
            config.retry_backoff_s,
        )
        executor = LocalExecutor(attempt, _rollout_policy(config), config.parallel)
        yield OpenedExecutor(executor, servers, client, run)


def _where_local(config: RolloutCollectionConfig, servers: Servers) -> str:
    unused = "; num_workers has no effect without +executor=processes"
    return servers.where + (unused if config.num_workers is not None else "")


@asynccontextmanager
async def _open_processes(
    config: RolloutCollectionConfig, servers: Servers, to_run: int
) -> AsyncIterator[OpenedExecutor]:
    run = uuid4().hex
    async with servers.shared() as shared:
        shares = shares_of(config.parallel, min(_num_workers(config), to_run))
        rollout_policy = _rollout_policy(config)
        setup = WorkerSetup(
            config=dump_config(shared.config()),
            is_embedded=shared.to_host is not None,
            elsewhere=shared.elsewhere,
            rollout_policy=rollout_policy,
            call_timeout_s=config.call_timeout_s,
            adaptive_ceiling=shares[0] if config.adaptive_concurrency else 0,
            run=run,
            process_urls=tuple(shared.process_urls),
        )
        policy = PoolPolicy(
            silence_s=config.rollout_timeout_s + _SILENCE_S,
            teardown_s=rollout_policy.teardown_s,
        )
        executor = WorkerPool(partial(start_worker_process, setup), shares, policy)
        yield OpenedExecutor(executor, shared, run=run)


def _check_processes(servers: Servers) -> None:
    if servers.running is not None and servers.running.is_local:
        raise ConfigError(
            "executor=processes cannot use servers that are open in this process; use executor=local, or "
            "ng_collect_rollouts with '+config_paths=[…]'"
        )


def _where_processes(config: RolloutCollectionConfig, servers: Servers) -> str:
    workers = f"{_num_workers(config)} worker processes"
    return f"hosted in each of {workers}" if servers.to_host is not None else f"{servers.where}, {workers}"


EXECUTORS: Mapping[str, ExecutorKind] = {
    "local": ExecutorKind(_open_local, _where_local),
    "processes": ExecutorKind(_open_processes, _where_processes, _check_processes),
}


def _rollout_policy(config: RolloutCollectionConfig) -> RolloutPolicy:
    longest_s = max(_LONGEST_BACKOFF_S, config.retry_backoff_s)
    retry = RetryPolicy(config.max_attempts, config.retry_backoff_s, longest_s, _RETRY_TOTAL_S)
    return RolloutPolicy(config.rollout_timeout_s, retry)


def _adaptive_ceiling(config: RolloutCollectionConfig) -> int:
    return config.parallel if config.adaptive_concurrency else 0


def _num_workers(config: RolloutCollectionConfig) -> int:
    return config.num_workers or available_cores()
