"""Limits of a run: no more rollouts are started, running ones finish, and a resume completes the run."""

import asyncio

import pytest

from scripts.scripted_endpoint import Output
from tests.support.collecting import CollectionRuns, no_override

PROCESSES = {"executor": "processes", "num_workers": 2}
TOKENS_PER_ROLLOUT = 15
both_executors = pytest.mark.parametrize("settings", [{}, PROCESSES], ids=["local", "processes"])


@both_executors
def test_token_limit_lets_running_rollouts_finish_and_a_resume_completes_the_run(
    runs: CollectionRuns, settings: dict[str, object]
) -> None:
    collector = runs.start(max_total_tokens=4 * TOKENS_PER_ROLLOUT, num_samples_in_parallel=2, **settings)
    assert collector.wait() == 1, collector.output
    assert "Stopped early: max_total_tokens=60 was reached (" in collector.output
    assert "+resume_from_cache=true" in collector.output and "Key metrics of" in collector.output
    assert 4 <= len(runs.recorded()) <= 5
    assert not runs.failures
    assert runs.check_ledger()["failed"] == {}
    runs.finish()


@both_executors
def test_time_limit_lets_running_rollouts_finish_and_a_resume_completes_the_run(
    runs: CollectionRuns, settings: dict[str, object]
) -> None:
    limit_s = 1.5

    async def outlast_the_limit(number: int, times: int) -> Output | None:
        await asyncio.sleep(limit_s if number >= 4 else 0.0)
        return None

    runs.adder.override = outlast_the_limit
    collector = runs.start(max_run_time_s=limit_s, num_samples_in_parallel=2, stop_grace_s=0.1, **settings)
    assert collector.wait() == 1, collector.output
    assert "Stopped early: max_run_time_s=1.5 was reached." in collector.output
    assert runs.recorded() <= set(range(6)) and not runs.failures
    assert runs.check_ledger()["not_run"] >= 6
    runs.adder.override = no_override
    runs.finish()


def test_limit_that_is_reached_with_the_last_rollout_does_not_count(runs: CollectionRuns) -> None:
    collector = runs.start(max_total_tokens=12 * TOKENS_PER_ROLLOUT)
    assert collector.wait() == 0, collector.output
    assert "Stopped early" not in collector.output
