"""What the bar counts: the whole run, without calling cancelled rollouts failed."""

import time
from collections import Counter

import pytest

from nemo_gym.failures import FailureKind
from nemo_gym.records import Key
from nemo_gym.rollout_collection.display.progress import Progress
from nemo_gym.rollout_collection.display.screen import plain_line
from nemo_gym.rollout_collection.execution.executor import ExecutorState
from nemo_gym.rollout_collection.outcome import Failure, Success
from nemo_gym.rollout_collection.recording.ledger import Ledger
from tests.support.scripted_agent import Playground

Capture = pytest.CaptureFixture[str]
IDLE = ExecutorState()


def failure(kind: FailureKind) -> Failure:
    return Failure(Key(1, 0), {"name": "agent"}, kind, "Error", "scripted")


def success() -> Success:
    return Success(Key(0, 0), "agent", b"{}", {"reward": 1.0, "output_tokens": 7.0})


def test_resumed_run_counts_what_earlier_runs_have_done_but_not_in_its_rate() -> None:
    started = time.monotonic() - 60
    progress = Progress(100, Counter(agent=40), {}, started=started, earlier=60, failed=3)
    before = progress.snapshot(IDLE)
    assert (before.done, before.total, before.failed, before.per_minute) == (60, 100, 3, 0)
    progress = Progress(100, Counter(agent=40), {}, started=started, earlier=60)
    progress.take(success())
    after = progress.snapshot(IDLE)
    assert after.done == 61 and after.per_minute == pytest.approx(1, rel=0.1)
    assert after.eta_s == pytest.approx(39 * 60, rel=0.1)


def test_cancelled_rollouts_are_neither_failed_nor_done() -> None:
    progress, ledger = Progress(4, Counter(agent=4), {}), Ledger(4)
    for outcome in (success(), failure(FailureKind.DATA), failure(FailureKind.CANCELLED)):
        progress.take(outcome)
        ledger.take(outcome)
    snapshot = progress.snapshot(IDLE)
    assert (snapshot.done, snapshot.failed, snapshot.left) == (2, 1, [("agent", 2)])
    assert str(ledger) == ("4 planned = 1 succeeded + 1 failed (1 data) + 2 not run (1 cancelled); 0 retried")
    assert ledger.as_data()["failed"] == {"data": 1} and ledger.as_data()["cancelled"] == 1


def test_bar_of_a_resumed_run_shows_the_whole_run(playground: Playground, capsys: Capture) -> None:
    playground.set_response("1:0", "down", status=503)
    playground.collect()
    assert "Collecting rollouts: 3/3 (100%)" in capsys.readouterr().err
    playground.reset_responses()
    playground.collect(resume_from_cache=True)
    assert playground.played() == ["0:0", "1:0", "1:0", "1:0", "2:0"]
    assert "Collecting rollouts: 3/3 (100%)" in capsys.readouterr().err
    assert plain_line(Progress(0, Counter(), {}).snapshot(IDLE)).startswith("Collecting rollouts: 0/0 (100%)")
