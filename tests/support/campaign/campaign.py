"""The campaign: rounds of one collection each, until the wanted number of processes has been killed.

A round starts or resumes a collection, adds faults, kills a process in some phase, and checks that nothing
that was recorded is lost or played again. A collection that completes must have each key exactly once.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from nemo_gym.path_utils import materialized_path_for, status_path_for
from nemo_gym.rollout_collection.recording.status_file import read_status
from scripts.scripted_endpoint import ScriptedEndpoint
from tests.support.campaign import endpoint_faults, troubled_environment
from tests.support.campaign.endpoint_faults import EndpointFaults
from tests.support.campaign.tally import Tally
from tests.support.campaign.troubled_environment import AGENT, CONFIG_PATH, Troubles
from tests.support.collecting import LONGEST_S, MODEL, Adder, CollectionRuns, Collector, Fault
from tests.support.commands import NgRun, children_of, descendants_of, processes_in, wait_until
from tests.support.faults import die_before_step_of, limit_file_size

ROLLOUTS = 60
VICTIMS = {
    "embedded": ("collector",),
    "processes": ("collector", "worker"),
    "served": ("collector", "server", "ng_run"),
}
SETTINGS: dict[str, dict[str, object]] = {
    "embedded": {},
    "processes": {"executor": "processes", "num_workers": 2},
    "served": {"hosting": "served"},
}
SIZE_LIMIT: dict[str, object] = {"max_response_mb": endpoint_faults.LARGEST_MB}
HOSTINGS = (*["embedded"] * 3, *["processes"] * 2, *["served"] * 2)
"""Embedded collections are the quickest to kill, so there are more of them."""
PHASES = ("start", "plan", "run", "aggregate", "resume")
STEPS = {"plan": (("materialized", "manifest"), 6), "aggregate": (("aggregate",), 3)}
"""Parts of the names of the files that a phase writes, and about how many steps that takes."""
WATCHERS = ("second_collector", "status_file_deleted", "status_file_linked", "hard_link", "output_moved")
"""Things that others do to the files of a running collection."""
ENDING_S = 60.0
"""The longest that processes take to end after the process that started them."""


class Campaign:
    """Kills and faults in one folder."""

    def __init__(self, folder: Path, endpoint: ScriptedEndpoint, adder: Adder, seed: int) -> None:
        folder.mkdir(exist_ok=True)
        self._random = random.Random(seed)
        self._endpoint = endpoint
        self._troubles = Troubles(folder)
        adder.override = self._endpoint_faults = EndpointFaults(self._random)
        self._runs = CollectionRuns(
            folder, endpoint, adder, ROLLOUTS, config_paths=(CONFIG_PATH, MODEL), agent=AGENT
        )
        self._ng_run: NgRun | None = None
        self._is_fresh = True
        """The next round begins a new collection."""
        self.tally = Tally()

    def run(self, kills: int, on_round: Callable[[Tally], None] = lambda tally: None) -> Tally:
        try:
            while self.tally.kills.total() < kills and not self.tally.violations:
                self._round()
                on_round(self.tally)
            if not self.tally.violations and not self._is_fresh:
                self._finish()
        finally:
            self._stop_ng_run()
        return self.tally

    def _round(self) -> None:
        hosting = self._random.choice(HOSTINGS)
        victim = self._random.choice(VICTIMS[hosting])
        phase = self._random.choice(PHASES)
        is_resumed = phase == "resume" or not self._is_fresh
        runs = self._runs
        done = runs.recorded() if is_resumed else set()
        if not is_resumed:
            self._clear_old_files()
            runs.adder.request_counts.clear()
        counts = runs.adder.request_counts.copy()
        settings = self._settings(hosting)
        what = f"{hosting}, {victim} in {phase}"
        self._plant(done)
        collector = runs.start(
            self._system_fault(victim, phase), resume_from_cache=str(is_resumed).lower(), **settings
        )
        self._attack(collector, hosting, victim, phase)
        self._end(collector, f"{what}, faults {self._planted}")
        self._check(collector, what, done, counts)

    def _settings(self, hosting: str) -> dict[str, object]:
        settings = {"max_attempts": 20, **SIZE_LIMIT, **SETTINGS[hosting]}
        if hosting == "served":
            settings["head_server.port"] = self._running().head.port
        return settings

    def _running(self) -> NgRun:
        """An `ng_run`, a new one if the last one was killed."""
        if self._ng_run is not None and self._ng_run.process.poll() is not None:
            self._stop_ng_run()
        if self._ng_run is None:
            restarts = {"restart_policy": "on_failure", "max_restarts": 1000}
            self._ng_run = NgRun(
                [CONFIG_PATH, MODEL], {**self._endpoint.settings, **SIZE_LIMIT, **restarts}, self._runs.folder
            )
            self._ng_run.wait_ready()
        return self._ng_run

    def _plant(self, done: set[int]) -> None:
        """Choose the faults of the endpoint and of the environment for this round."""
        planted = []
        self._endpoint_faults.fault = None
        if self._random.random() < 0.5:
            self._endpoint_faults.fault = self._random.choice(endpoint_faults.FAULTS)
            planted.append(f"endpoint: {self._endpoint_faults.fault}")
        left = sorted(set(range(ROLLOUTS)) - done)
        if left and self._random.random() < 0.4:
            trouble = self._random.choice(troubled_environment.TROUBLES)
            self._troubles.plant(self._random.choice(left), trouble)
            planted.append(f"environment: {trouble}")
        self._planted = planted

    def _system_fault(self, victim: str, phase: str) -> Fault | None:
        folder = self._runs.output.parent
        if victim == "collector" and phase in STEPS:
            parts, steps = STEPS[phase]
            return partial(die_before_step_of, folder, parts, self._random.randint(1, steps))
        if self._random.random() < 0.1:
            self._planted.append("system: full disk")
            return partial(limit_file_size, self._random.randint(1_000, 60_000))
        return None

    def _attack(self, collector: Collector, hosting: str, victim: str, phase: str) -> None:
        """Wait for the phase, let others touch the files, and kill the victim."""
        if phase in ("run", "aggregate"):
            before = len(self._runs.recorded())
            wanted = ROLLOUTS if phase == "aggregate" else self._random.randint(before, ROLLOUTS)
            self._wait(collector, lambda: len(self._runs.recorded()) >= wanted)
        elif phase == "plan" and victim != "collector":
            self._wait(collector, materialized_path_for(self._runs.output).exists)
        elif not (victim == "collector" and phase in STEPS):
            time.sleep(self._random.uniform(0, 0.6))
        if self._random.random() < 0.2:
            self._touch_files(collector)
        if self._random.random() < 0.15:
            self._interrupt_endpoint()
        if victim == "collector" and phase in STEPS:  # it kills itself
            collector.process.join(LONGEST_S)
        else:
            pids = self._pids(victim, collector)
            if pids:
                self._kill(self._random.choice(pids))
                if victim != "collector":
                    self.tally.kills[hosting, victim, phase] += 1
        if victim == "collector":
            collector.process.join(LONGEST_S)
            self.tally.kills[hosting, victim, phase] += collector.process.exitcode == -signal.SIGKILL

    def _pids(self, victim: str, collector: Collector) -> list[int]:
        match victim:
            case "collector":
                return [collector.pid] if collector.is_running else []
            case "worker":
                self._wait(collector, lambda: bool(children_of(collector.pid)))
                return children_of(collector.pid)
            case "server":
                return children_of(self._running().process.pid)
            case _:
                return [self._running().process.pid]

    @staticmethod
    def _kill(pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    @staticmethod
    def _wait(collector: Collector, condition: Callable[[], bool]) -> None:
        """Until the condition holds or the collector has ended."""
        wait_until(lambda: condition() or not collector.is_running, LONGEST_S)

    def _interrupt_endpoint(self) -> None:
        self.tally.faults["endpoint: down"] += 1
        self._endpoint.go_down()
        time.sleep(self._random.uniform(0.1, 0.8))
        self._endpoint.come_back()

    def _touch_files(self, collector: Collector) -> None:
        """What others do to the files of a running collection; a second one must never get in."""
        fault = self._random.choice(WATCHERS)
        output, status = self._runs.output, status_path_for(self._runs.output)
        if not output.exists() or (read_status(status) or {}).get("pid") != collector.pid:
            return  # the collection has not begun, or is over
        self.tally.faults[f"files: {fault}"] += 1
        if fault == "output_moved":
            self._move_output(collector)
            return
        settings: dict[str, object] = {}
        if fault == "status_file_deleted":
            status.unlink(missing_ok=True)
        elif fault == "status_file_linked":
            status.unlink(missing_ok=True)
            status.symlink_to(self._runs.folder / "elsewhere")
        elif fault == "hard_link":
            link = output.with_name("link.jsonl")
            link.unlink(missing_ok=True)
            os.link(output, link)
            settings["output_jsonl_fpath"] = link.relative_to(self._runs.folder)
        self._start_second(collector, fault, settings)
        if fault == "hard_link":
            for path in output.parent.glob("link*"):
                path.unlink()
        if status.is_symlink():
            status.unlink()
        if (self._runs.folder / "elsewhere").exists():
            self._violation(collector, "the status file was written through a symbolic link")

    def _start_second(self, first: Collector, fault: str, settings: dict[str, object]) -> None:
        second = self._runs.resume(**settings)
        code = second.wait()
        if code != 2 and first.is_running:
            self._violation(second, f"a second collector was not refused ({fault}, exit code {code})")

    def _move_output(self, collector: Collector) -> None:
        output = self._runs.output
        moved = output.with_suffix(".moved")
        done = self._runs.recorded()
        output.rename(moved)
        collector.process.join(LONGEST_S)
        if collector.process.exitcode == 0 and len(done) < ROLLOUTS and not output.exists():
            self._violation(collector, "success although the output was moved away")
        moved.replace(output)

    def _end(self, collector: Collector, what: str) -> None:
        """Wait for the end of the collector and of all that it started."""
        for fault in self._planted:
            self.tally.faults[fault] += 1
        collector.process.join(LONGEST_S)
        if collector.is_running:
            self._violation(collector, f"still running after {LONGEST_S:g} s: {what}")
            collector.kill()
        unused = self._troubles.clear()
        is_forked = "environment: fork" in self._planted and "fork" not in unused
        served = descendants_of(self._ng_run.process.pid) if self._ng_run is not None else []
        keep = {*served, *([self._ng_run.process.pid] if self._ng_run is not None else [])}
        if is_forked:  # a fork belongs to nobody
            self._stop_ng_run()
            for pid in processes_in(self._runs.folder):
                self._kill(pid)
        elif not wait_until(lambda: not set(processes_in(self._runs.folder)) - keep, ENDING_S):
            self._violation(collector, f"processes outlived the collector: {what}")

    def _stop_ng_run(self) -> None:
        if self._ng_run is not None:
            self._ng_run.process.kill()
            self._ng_run.close()
            self._ng_run = None

    def _check(self, collector: Collector, what: str, done: set[int], counts: dict[int, int]) -> None:
        runs, code = self._runs, collector.process.exitcode
        what = f"{what}, faults {self._planted}, exit code {code}"
        self.tally.rounds += 1
        if code not in (0, 1, 2, 9, -signal.SIGKILL):
            self._violation(collector, f"unexpected exit code: {what}")
        recorded = runs.recorded()
        if lost := done - recorded:
            self._violation(collector, f"recorded rollouts are lost: {sorted(lost)} ({what})")
        if repeated := [number for number in done if runs.adder.request_counts[number] != counts[number]]:
            self._violation(collector, f"recorded rollouts were played again: {repeated} ({what})")
        numbers = runs.recorded_numbers()
        if len(numbers) != len(set(numbers)):
            self._violation(collector, f"rollouts are recorded twice: {what}")
        self._is_fresh = code == 0
        if code == 0:
            self._check_complete(collector, what)

    def _check_complete(self, collector: Collector, what: str) -> None:
        try:
            self._runs.check_complete()
        except (AssertionError, OSError, ValueError) as error:
            self._violation(collector, f"reported as complete, but: {error} ({what})")
        self.tally.completed += 1
        self.tally.keys += ROLLOUTS

    def _finish(self) -> None:
        """Resume the last collection to its end, without faults."""
        self._endpoint_faults.fault, self._planted = None, []
        collector = self._runs.resume()
        if collector.wait() != 0:
            self._violation(collector, "the last collection does not complete")
        else:
            self._check(collector, "the last resume", self._runs.recorded(), self._runs.adder.request_counts)

    def _clear_old_files(self) -> None:
        """Delete what earlier collections left, apart from the output of the last one."""
        if self._runs.output.parent.exists():
            for path in self._runs.output.parent.iterdir():
                if not path.name.endswith(".jsonl") or self._random.random() < 0.5:
                    path.unlink()

    def _violation(self, collector: Collector, text: str) -> None:
        self.tally.violations.append(f"{text}\n{collector.output[-3000:]}")
