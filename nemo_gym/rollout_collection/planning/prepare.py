"""Before the first rollout: write a new plan, or check and resume that of an earlier run."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.config.hints import listed
from nemo_gym.errors import ChangedInputsError, ConfigError, InputError, JournalError
from nemo_gym.journal import Recovery, line_numbers, new_file, read_lines, set_aside
from nemo_gym.metrics.copied_numbers import count_copied
from nemo_gym.path_utils import failures_path_for, files_of_run, manifest_path_for
from nemo_gym.records import BadLines, Key, parsed, unpacked
from nemo_gym.rollout_collection.collection_policy import CollectionPolicy
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.planning.belonging import Stray, strays
from nemo_gym.rollout_collection.planning.materialize import (
    INPUT_DIGEST,
    RECIPE_DIGEST,
    Materialized,
    find_input,
    materialize,
    recipe_of,
)
from nemo_gym.rollout_collection.planning.remaining import (
    RemainingWork,
    packed_key_of,
    planned_rows,
    remaining_work,
    whole_plan,
)
from nemo_gym.rollout_collection.recording.manifest import (
    ACCEPTED,
    OUTPUT_STATE,
    Manifest,
    differences,
    flattened,
    output_state,
)
from nemo_gym.rollout_collection.recording.output_lock import OutputLock
from nemo_gym.rollout_collection.recording.recovery import (
    PastFailures,
    forget_failures,
    read_failures,
    recover_failures,
)
from nemo_gym.rollout_collection.recording.scan import (
    Found,
    find_rollouts,
    recover_output,
    scan_whole,
)
from nemo_gym.rollout_collection.run_servers import Servers
from nemo_gym.terminal import counted

Note = Callable[[str], None]
_SHOWN = 10


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start."""

    work: RemainingWork
    manifest: Manifest
    is_resumed: bool = False
    found: Found = field(default_factory=Found)
    """The rollouts in the output: those of earlier runs, and later those of this run as well."""

    def planned_by_agent(self) -> Counter[str]:
        """Rollouts per agent that should be in the output in the end. Valid until the first is recorded."""
        found = Counter({agent: len(columns) for agent, columns in self.found.columns.items()})
        return found + Counter(self.work.to_run_by_agent) + Counter(self.work.skipped_by_agent)


_OTHER_OUTPUT = "choose another +output_jsonl_fpath="


def prepare_folder(config: RolloutCollectionConfig, roots: Sequence[Path]) -> None:
    """Create the folder of the output, if `check_output` accepts it."""
    check_output(config, roots)
    output = Path(config.output_jsonl_fpath)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(output, str(error.strerror)) from error


def check_output(config: RolloutCollectionConfig, roots: Sequence[Path]) -> None:
    """Refuse an output that cannot be written, is not a file, or would replace the input."""
    output = Path(config.output_jsonl_fpath)
    folder = next(path for path in output.absolute().parents if os.path.lexists(path))
    if not folder.is_dir():
        raise _cannot_write(output, f"{folder} is not a folder")
    if not os.access(folder, os.W_OK):
        raise ConfigError(
            f"output_jsonl_fpath: {folder} is not writable; change its permissions, or {_OTHER_OUTPUT}"
        )
    if output.exists() and not output.is_file():
        raise ConfigError(
            f"output_jsonl_fpath: {output} is a folder or a device, not a file; {_OTHER_OUTPUT}"
        )
    source = find_input(config, roots)
    if source is not None and any(path.exists() and source.samefile(path) for path in files_of_run(output)):
        raise ConfigError(
            f"input_jsonl_fpath: {source} is one of the files that a run with the output {output} would "
            f"overwrite; {_OTHER_OUTPUT}"
        )


def _cannot_write(output: Path, reason: str) -> ConfigError:
    return ConfigError(f"output_jsonl_fpath: cannot write {output}: {reason}; {_OTHER_OUTPUT}")


def missing_to_resume(config: RolloutCollectionConfig) -> list[str]:
    """The missing or empty files of an earlier run if it recorded nothing; empty if it can be resumed."""
    plan, output = config.materialized_jsonl_fpath, Path(config.output_jsonl_fpath)
    if output.exists() and any(map(_has_content, (output, failures_path_for(output)))):
        return []
    return [*([] if plan.exists() else [str(plan)]), str(output)]


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def prepare(
    config: RolloutCollectionConfig,
    servers: Servers,
    policy: CollectionPolicy,
    note: Note,
    lock: OutputLock,
) -> Prepared:
    """Write a new plan, or resume the earlier run."""
    if config.resume_from_cache:
        missing = missing_to_resume(config)
        if not missing:
            return _Resumption(config, servers, policy, note, lock).prepare()
        note(f"Nothing to resume: {' and '.join(missing)} not found or empty. Starting a new run.")
    return _start_new_run(config, servers, policy, note, lock)


def _start_new_run(
    config: RolloutCollectionConfig,
    servers: Servers,
    policy: CollectionPolicy,
    note: Note,
    lock: OutputLock,
) -> Prepared:
    output, materialized = Path(config.output_jsonl_fpath), config.materialized_jsonl_fpath
    with new_file(materialized) as file:
        plan = materialize(config, policy.roots, file.write, servers.agents)
        servers.check_agents(plan.by_agent)
        for warning in plan.warnings():
            note(warning)
        file.flush()  # a full disk is noticed before the earlier run is set aside
        moved = set_aside([output])
        lock.follow()
        moved += set_aside([path for path in files_of_run(output) if path != output])
    if moved:
        names = ", ".join(path.name for path in moved)
        hint = "" if config.resume_from_cache else " (+resume_from_cache=true would have continued it)"
        note(f"The files of an earlier run were renamed: {names}{hint}")
    manifest = Manifest.new(manifest_path_for(output), config.model_dump(), servers.values)
    manifest.data["materialized_inputs"] = plan.as_data(recipe_of(config, policy.roots))
    return Prepared(whole_plan(materialized, plan.by_agent, policy.max_rollout_attempts), manifest)


@dataclass
class _Resumption:
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
        numbers = line_numbers(self.output, [stray.offset for stray in found[:_SHOWN]])
        lines = [f"line {numbers[stray.offset]}: {stray.reason}" for stray in found[:_SHOWN]]
        text = listed(lines) + _and_more(len(found))
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
        text = _listed(changed)
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
        for number, reason in recovery.set_aside[:_SHOWN]:
            self.note(f"{path}:{number}: the line {reason}; it was moved to {recovery.kept_in}")
        if len(recovery.set_aside) > _SHOWN:
            self.note(f"… and {len(recovery.set_aside) - _SHOWN} more such lines")


def broken_plan(path: Path, least: int) -> str | None:
    """Why the plan of an earlier run, of at least so many rollouts, cannot be used; None if it can."""
    if not path.is_file():
        return "was not found" if not os.path.lexists(path) else "is not a file"
    number = 0
    try:
        for line in read_lines(path):
            packed_key_of(line.data, path)
            number = line.number
            if not line.is_ended or not isinstance(parsed(line.data), dict):
                return f"is incomplete at line {number}"
    except (OSError, ValueError, RecursionError, JournalError):
        return f"cannot be read from line {number + 1} on"
    return f"has only {number} of {least} lines" if number < least else None


def check_without_input(
    config: RolloutCollectionConfig, recipe: dict[str, Any], earlier: Manifest | None
) -> str:
    """Refuse to change a plan whose input file is missing; returns a message if the plan stays the same."""
    inputs = earlier.data.get("materialized_inputs") if earlier is not None else None
    if other := changed_recipe(inputs, recipe):
        raise ChangedInputsError(
            f"{config.input_jsonl_fpath}: not found; it is needed because the plan has changed:"
            f"{_listed(other)}\nPut the file back, or resume with the settings of the earlier run"
        )
    return f"{config.input_jsonl_fpath}: not found; continuing with {config.materialized_jsonl_fpath}"


def changed_recipe(inputs: Any, now: dict[str, Any]) -> list[str]:
    """Settings that would make another plan, for when the input itself cannot be compared."""
    before = inputs.get("recipe") if isinstance(inputs, dict) else None
    if not isinstance(before, dict):
        return []
    settings = (
        {
            key: value
            for key, value in flattened(recipe)
            if key not in (INPUT_DIGEST, RECIPE_DIGEST) and value != {}
        }
        for recipe in (before, now)
    )
    return differences(*settings)


def changed_rows(before: Path, now: Path) -> list[str]:
    """How the new plan differs from the earlier one. Additional rollouts are not a difference."""
    hashes = {packed_key_of(line.data, before): (line.offset, hash(line.data)) for line in read_lines(before)}
    changes: dict[str, list[Key]] = {}
    for line in read_lines(now):
        packed_key = packed_key_of(line.data, now)
        found = hashes.pop(packed_key, None)
        if found is not None and found[1] != hash(line.data):
            for change in _row_differences(_line_at(before, found[0]), line.data):
                changes.setdefault(change, []).append(unpacked(packed_key))
    texts = [f"{change} ({_of(keys)})" for change, keys in changes.items()]
    if hashes:
        texts.append(fewer_rollouts(len(hashes)))
    return texts


def fewer_rollouts(missing: int) -> str:
    lacking = counted(missing, "rollout")
    return f"this plan lacks {lacking} of the earlier plan; was limit or num_repeats reduced?"


def _listed(changed: list[str]) -> str:
    return listed(changed[:_SHOWN]) + _and_more(len(changed))


def _and_more(number: int) -> str:
    return f"\n  … and {number - _SHOWN} more" if number > _SHOWN else ""


def _row_differences(before: bytes, now: bytes) -> list[str]:
    return differences(dict(flattened(parsed(before))), dict(flattened(parsed(now))))


def _of(keys: list[Key]) -> str:
    return f"rollout {keys[0]}" if len(keys) == 1 else f"{len(keys)} rollouts, the first is {keys[0]}"


def _line_at(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.readline()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
