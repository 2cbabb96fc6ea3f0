"""A resume: what an earlier run left is checked, then repaired, and becomes the start of this run."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config.hints import listed
from nemo_gym.errors import ChangedInputsError, InputError
from nemo_gym.journal import Recovery, line_numbers, new_file, read_lines, set_aside
from nemo_gym.metrics.copied_numbers import count_copied
from nemo_gym.path_utils import failures_path_for, manifest_path_for
from nemo_gym.records import BadLines
from nemo_gym.rollout_collection.collection_policy import CollectionPolicy
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.planning.belonging import Stray, strays
from nemo_gym.rollout_collection.planning.materialize import Materialized, find_input, materialize, recipe_of
from nemo_gym.rollout_collection.planning.plan_changes import (
    MOST_SHOWN,
    and_more,
    broken_plan,
    changed_rows,
    check_without_input,
    listed_changes,
)
from nemo_gym.rollout_collection.planning.ready_run import Prepared
from nemo_gym.rollout_collection.planning.remaining import (
    RemainingWork,
    packed_key_of,
    planned_rows,
    remaining_work,
)
from nemo_gym.rollout_collection.recording.manifest import ACCEPTED, OUTPUT_STATE, Manifest, output_state
from nemo_gym.rollout_collection.recording.output_lock import OutputLock
from nemo_gym.rollout_collection.recording.recovery import (
    PastFailures,
    forget_failures,
    read_failures,
    recover_failures,
)
from nemo_gym.rollout_collection.recording.scan import Found, find_rollouts, recover_output, scan_whole
from nemo_gym.rollout_collection.run_servers import Servers
from nemo_gym.terminal import counted

Note = Callable[[str], None]


@dataclass
class Resumption:
    """One resumption of an earlier run."""

    config: RolloutCollectionConfig
    servers: Servers
    policy: CollectionPolicy
    note: Note
    lock: OutputLock
    accepted: int = 0
    """Rollouts in the output that do not belong to the plan, and that the user has accepted."""

    def __post_init__(self) -> None:
        self.output = Path(self.config.output_jsonl_fpath)
        self.materialized = self.config.materialized_jsonl_fpath

    def prepare(self) -> Prepared:
        path = manifest_path_for(self.output)
        earlier = Manifest.load(path)
        manifest = Manifest.new(path, self.config.model_dump(), self.servers.values).resumed(earlier)
        changed = earlier.changed_servers(self.servers.values) if earlier is not None else []
        self.accepted = earlier.num_accepted() if earlier is not None else 0
        found = scan_whole(self.output)
        # A repair changes files, so everything that can be refused comes before it.
        readable = found if found is not None else find_rollouts(self.output, BadLines(are_skipped=True))
        manifest.data["materialized_inputs"] = self._checked_inputs(earlier, changed, readable)
        past = read_failures(failures_path_for(self.output))
        past.worker_deaths = manifest.worker_deaths()
        work = self._work(readable, past)
        self.servers.check_agents(work.to_run_by_agent)
        if earlier is None:
            self._set_aside_manifest(path)
        _, recovery = recover_failures(failures_path_for(self.output))
        self._report_repair(failures_path_for(self.output), recovery)
        if found is None:
            found = self._recovered_output()
            work = self._work(found, past)
        count_copied(found.columns, planned_rows(self.materialized))
        manifest.data[ACCEPTED] = max(self.accepted, work.not_planned)
        self._describe(work)
        return Prepared(work, manifest, True, found)

    def _work(self, found: Found, past: PastFailures) -> RemainingWork:
        return remaining_work(self.materialized, found.index.keys, past, self.policy.max_rollout_attempts)

    def _set_aside_manifest(self, path: Path) -> None:
        """Keep a file that has the name of the manifest but cannot be used as one."""
        if not os.path.lexists(path):
            return
        names = ", ".join(kept.name for kept in set_aside([path]))
        renamed = f"; it was renamed to {names}" if names else ""
        self.note(f"{path} is not a manifest, so changes of settings are not noticed{renamed}")

    def _checked_inputs(self, earlier: Manifest | None, changed: list[str], found: Found) -> Any:
        """The plan of this run; refuses one that differs from that of the earlier run."""
        inputs = earlier.inputs() if earlier is not None else None
        recipe = recipe_of(self.config, self.policy.roots)
        digest = _digest(self.materialized) if self.materialized.is_file() else None
        is_as_made = inputs is not None and inputs["sha256"] == digest
        least = inputs["rollouts"] if inputs is not None else 0
        broken = None if is_as_made else broken_plan(self.materialized, least)
        foreign: list[Stray] = []
        # After a kill, or a change by another program, every rollout is compared with the plan.
        is_as_left = earlier is not None and earlier.data.get(OUTPUT_STATE) == output_state(self.output)
        if broken is None and not (is_as_made and is_as_left):
            foreign = strays(self.output, found.index, self.materialized)
        if not is_as_made and len(foreign) > self.accepted:
            broken = "does not have all recorded rollouts"
        if broken is not None:
            return self._planned_again(broken, recipe, changed, found)
        self._refuse_strays(foreign)
        if find_input(self.config, self.policy.roots) is None:
            self.note(check_without_input(self.config, recipe, earlier))
            self._refuse(changed)
            return inputs
        # The manifest of a run that was killed while it changed to a larger plan still has the old plan.
        made = (recipe, digest)
        if inputs is not None and (inputs["recipe"], inputs["sha256"]) == made:
            self._refuse(changed)
            return inputs
        candidate = self._candidate()
        try:
            plan = self._materialize(candidate)
            if plan.digest == made[1]:
                self._refuse(changed)
                return plan.as_data(recipe)
            rows = changed_rows(self.materialized, candidate)
            self._refuse([*changed, *rows])
            inputs = plan.as_data(recipe)
            if rows:
                inputs["sha256"] = self._keep_played_rows(candidate)
            candidate.replace(self.materialized)
            return inputs
        finally:
            candidate.unlink(missing_ok=True)

    def _candidate(self) -> Path:
        return self.materialized.with_name(f".{self.materialized.name}.candidate.tmp")

    def _materialize(self, candidate: Path) -> Materialized:
        with new_file(candidate) as file:
            plan = materialize(self.config, self.policy.roots, file.write, self.servers.agents)
            self.servers.check_agents(plan.by_agent)
            for warning in plan.warnings():
                self.note(warning)
        return plan

    def _planned_again(
        self, broken: str, recipe: dict[str, Any], changed: list[str], found: Found
    ) -> dict[str, Any]:
        """A new plan in place of one that is lost; refused if the recorded rollouts do not belong to it."""
        if find_input(self.config, self.policy.roots) is None:
            raise InputError(
                f"{self.materialized} {broken}, and {self.config.input_jsonl_fpath}, which is needed to plan "
                "again, was not found; put either file back"
            )
        candidate = self._candidate()
        try:
            plan = self._materialize(candidate)
            self._refuse(changed)
            self._refuse_strays(strays(self.output, found.index, candidate))
            set_aside([self.materialized])
            candidate.replace(self.materialized)
        finally:
            candidate.unlink(missing_ok=True)
        self.note(f"{self.materialized} {broken}: planned again from {self.config.input_jsonl_fpath}")
        return plan.as_data(recipe)

    def _refuse_strays(self, found: list[Stray]) -> None:
        """Refuse rollouts that do not belong to the plan, unless the user accepts them or has done so."""
        if len(found) <= self.accepted:
            return
        numbers = line_numbers(self.output, [stray.offset for stray in found[:MOST_SHOWN]])
        lines = [f"line {numbers[stray.offset]}: {stray.reason}" for stray in found[:MOST_SHOWN]]
        text = listed(lines) + and_more(len(found))
        what = f"{self.output} has {counted(len(found), 'rollout')} that this run did not plan"
        if not self.config.allow_changed_inputs:
            raise ChangedInputsError(
                f"{what}:{text}\nNo file was changed. Put the output of this run back, choose another "
                "+output_jsonl_fpath=, or keep these rollouts with +allow_changed_inputs=true"
            )
        self.accepted = len(found)
        self.note(f"{what}; they are kept:{text}")

    def _keep_played_rows(self, candidate: Path) -> str:
        """Rollouts in the output keep the inputs that they were played with; returns the new plan's digest.

        Failures of inputs that have changed no longer count.
        """
        played, changed = set(self._recovered_output().index.keys), set()
        before = {
            packed_key_of(line.data, self.materialized): line.offset for line in read_lines(self.materialized)
        }
        with self.materialized.open("rb") as earlier, new_file(candidate) as file:
            for line in read_lines(candidate):
                now, packed_key = line.data + b"\n", packed_key_of(line.data, candidate)
                then = now
                if packed_key in before:
                    earlier.seek(before[packed_key])
                    then = earlier.readline()
                if then != now:
                    changed.add(packed_key)
                file.write(then if packed_key in played else now)
        failures = failures_path_for(self.output)
        self._report_repair(failures, forget_failures(failures, changed - played))
        return _digest(candidate)

    def _recovered_output(self) -> Found:
        found, recovery = recover_output(self.output)
        self.lock.follow()  # a repair may have replaced the file
        self._report_repair(self.output, recovery)
        return found

    def _refuse(self, changed: list[str]) -> None:
        if not changed:
            return
        text = listed_changes(changed)
        if not self.config.allow_changed_inputs:
            raise ChangedInputsError(
                f"{self.output} was collected with different inputs or settings:{text}\n"
                "Resume with the same inputs and settings, choose another +output_jsonl_fpath=, or continue "
                "anyway with +allow_changed_inputs=true"
            )
        self.note(f"Continuing although this differs from the earlier run:{text}")

    def _describe(self, work: RemainingWork) -> None:
        if work.not_planned:
            self.note(
                f"Kept {counted(work.not_planned, 'rollout')} in {self.output} that the plan does not have"
            )
        if work.num_skipped:
            each = "it" if work.num_skipped == 1 else "each"
            self.note(
                f"Skipped {counted(work.num_skipped, 'rollout')}: {each} failed "
                f"{counted(work.max_attempts, 'time')} because of its input (to allow more attempts, "
                "increase NEMO_GYM_MAX_ROLLOUT_ATTEMPTS), or its failure is terminal"
            )
        counts = f"{work.num_done} done, {work.to_run} remaining"
        self.note(f"Resuming: {counted(work.planned, 'rollout')} planned, {counts}")

    def _report_repair(self, path: Path, recovery: Recovery) -> None:
        for number, reason in recovery.set_aside[:MOST_SHOWN]:
            self.note(f"{path}:{number}: the line {reason}; it was moved to {recovery.kept_in}")
        if len(recovery.set_aside) > MOST_SHOWN:
            self.note(f"… and {len(recovery.set_aside) - MOST_SHOWN} more such lines")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
