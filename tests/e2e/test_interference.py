"""If other programs change the files of a collection, it stops, and claims no more than they hold."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_gym.path_utils import aggregate_metrics_path_for, failures_path_for
from scripts.scripted_endpoint import Output
from tests.e2e.test_collection_faults import Gate
from tests.e2e.test_unruly_environments import unruly
from tests.support.collecting import CollectionRuns, Collector, failing, no_override


def paused_at(runs: CollectionRuns, number: int) -> tuple[Collector, Gate]:
    """A collector that has recorded this many rollouts and waits for the next one."""
    runs.adder.override = gate = Gate(number)
    collector = runs.start(num_samples_in_parallel=1)
    collector.wait_until(lambda: len(runs.recorded()) == number and gate.waiting == 1)
    return collector, gate


def rename(output: Path) -> None:
    output.rename(output.parent.parent / "moved")


def move_folder(output: Path) -> None:
    output.parent.rename(output.parent.parent / "other")


def cut(output: Path) -> None:
    os.truncate(output, output.read_bytes().index(b"\n") + 1)


def append(output: Path) -> None:
    with output.open("a") as file:
        file.write('{"half')


def rewrite(output: Path) -> None:
    """As `sed -i` and many editors do."""
    shutil.copy(output, output.with_name("copy"))
    output.with_name("copy").replace(output)


CHANGES: dict[str, tuple[Callable[[Path], None], str, int]] = {
    "renamed": (rename, "was renamed to {folder}/moved while this run was writing it. All 6", 0),
    "its folder renamed": (move_folder, "was renamed to {folder}/other/rollouts.jsonl while", 0),
    "deleted": (Path.unlink, "was deleted while this run was writing it. It holds 0 of the 6", 0),
    "cut": (cut, "It holds 1 of the 6 rollouts recorded so far", 1),
    "appended to": (append, "grew by 6 bytes that this run did not write", 6),
    "replaced": (rewrite, "was deleted, and another file has its name now while", 6),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_output_stops_the_run_within_seconds_without_a_wrong_claim(
    runs: CollectionRuns, change: str
) -> None:
    do, message, held = CHANGES[change]
    collector, gate = paused_at(runs, 6)
    do(runs.output)
    assert collector.wait() == 1, collector.output  # although the next rollout never ends
    assert (
        "results/rollouts.jsonl was " in collector.output or "results/rollouts.jsonl grew" in collector.output
    )
    assert message.format(folder=runs.folder) in collector.output
    assert "+resume_from_cache=true" in collector.output and "Traceback" not in collector.output
    assert "Result:" not in collector.output
    assert not aggregate_metrics_path_for(runs.output).exists()
    gate.open()
    undo(runs)
    ledger = runs.manifest["ledger"]
    assert ledger["succeeded"] == held and ledger["not_run"] + sum(ledger["failed"].values()) == 12 - held
    runs.adder.override = no_override
    runs.finish()


def undo(runs: CollectionRuns) -> None:
    """Move a renamed file or folder back, as the message says."""
    file, folder = runs.folder / "moved", runs.folder / "other"
    if file.exists():
        file.rename(runs.output)
    if folder.exists():
        shutil.rmtree(runs.output.parent, ignore_errors=True)
        folder.rename(runs.output.parent)


CUTS = "async def cut(self): Path('results/rollouts.jsonl').write_text('')\nServer.misbehave = cut\n"


def test_change_in_the_last_moment_is_noticed_before_the_report(runs: CollectionRuns) -> None:
    runs = unruly(runs, f"from pathlib import Path\n{CUTS}")
    collector = runs.start(num_samples_in_parallel=1, limit=4)  # the last rollout does it
    assert collector.wait() == 1
    assert "It holds 1 of the 4 rollouts recorded so far" in collector.output
    assert "Result:" not in collector.output
    assert not aggregate_metrics_path_for(runs.output).exists()
    unruly(runs).finish()


def test_deleted_failures_file_stops_the_run(runs: CollectionRuns) -> None:
    gate = Gate(6)

    async def refuse(number: int, times: int) -> Output | None:
        return failing(400) if number == 2 else await gate(number, times)

    runs.adder.override = refuse
    collector = runs.start(num_samples_in_parallel=1)
    collector.wait_until(lambda: len(runs.recorded()) == 5 and gate.waiting == 1)
    failures_path_for(runs.output).unlink()
    assert collector.wait() == 1
    assert "results/rollouts_failures.jsonl was deleted" in collector.output
    assert "The rollouts are safe" in collector.output
    assert runs.check_ledger()["succeeded"] == 5
    runs.adder.override = no_override
    runs.finish()
