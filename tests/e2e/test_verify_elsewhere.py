"""`verify_in: thread` and `verify_in: process` in collections, wherever the environment is hosted."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.collecting import CollectionRuns
from tests.support.commands import NgRun, is_running, processes_in, wait_until
from tests.support.unruly import unruly

TELLS_WHERE = """
import os, threading

async def verify(self, body: dict) -> dict:
    place = {"verifier": os.getpid(), "parent": os.getppid()}
    return {**body, "reward": 1.0, **place, "thread": threading.current_thread().name}

Server.verify = verify
"""
COMPUTES_FOREVER = """
async def compute(self):
    while True:
        pass
Server.misbehave = compute
"""
TIMEOUT_S = 15
"""Longer than the start of a process that verifies, also on a busy machine."""
HOSTINGS = ["workers", "ng_run"]
PLACES = ["thread", "process"]


@contextmanager
def hosted(runs: CollectionRuns, hosting: str, verify_in: str) -> Iterator[dict[str, object]]:
    """The settings of a collection whose environment is hosted in one of these ways."""
    own = {
        "unruly.resources_servers.unruly.verify_in": verify_in,
        "unruly.resources_servers.unruly.verify_workers": 2,
    }
    if hosting == "workers":
        yield {**own, "executor": "processes", "num_workers": 2}
        return
    settings = {**runs.endpoint.settings, **own}
    with NgRun(list(runs.config_paths), settings, cwd=runs.folder) as served:
        yield {"hosting": "served", "head_server.port": served.head.port}


def rollouts(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("verify_in", PLACES)
@pytest.mark.parametrize("hosting", HOSTINGS)
def test_verifier_runs_where_its_setting_says(runs: CollectionRuns, hosting: str, verify_in: str) -> None:
    runs = unruly(runs, TELLS_WHERE)
    with hosted(runs, hosting, verify_in) as settings:
        collector = runs.start(**settings)
        assert collector.wait() == 0, collector.output
    runs.check_complete()
    recorded = rollouts(runs.output)
    for rollout in recorded:
        assert rollout["verifier"] not in (os.getpid(), collector.pid)
        if verify_in == "thread":
            assert rollout["thread"].startswith("verify unruly")
        else:
            assert rollout["thread"] == "MainThread" and rollout["parent"] != collector.pid
    assert wait_until(lambda: not any(is_running(one["verifier"]) for one in recorded))
    assert wait_until(lambda: not processes_in(runs.folder))


@pytest.mark.parametrize(("hosting", "verify_in"), [("workers", "process"), ("ng_run", "thread")])
def test_verifier_that_never_ends_costs_only_its_rollout(
    runs: CollectionRuns, hosting: str, verify_in: str
) -> None:
    runs = unruly(runs, COMPUTES_FOREVER)
    with hosted(runs, hosting, verify_in) as settings:
        collector = runs.start(**settings, call_timeout_s=TIMEOUT_S, max_attempts=1)
        assert collector.wait() == 1, collector.output
    assert runs.check_ledger()["succeeded"] == 11
    message = f"no response to POST /verify within {TIMEOUT_S} s"
    assert message in runs.failure_of(3)["error_message"]
    assert wait_until(lambda: not processes_in(runs.folder))
