"""Before the first rollout: write a new plan, or check and resume that of an earlier run."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.config.hints import listed
from nemo_gym.errors import ChangedInputsError, ConfigError
from nemo_gym.journal import Recovery, new_file, read_lines, set_aside
from nemo_gym.metrics.copied_numbers import count_copied
from nemo_gym.path_utils import failures_path_for, files_of_run, manifest_path_for
from nemo_gym.records import Key, parsed, unpacked
from nemo_gym.rollout_collection.collection_policy import CollectionPolicy
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.planning.materialize import (
    INPUT_DIGEST,
    RECIPE_DIGEST,
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
from nemo_gym.rollout_collection.recording.manifest import Manifest, differences, flattened
from nemo_gym.rollout_collection.recording.output_lock import OutputLock
from nemo_gym.rollout_collection.recording.recovery import forget_failures, recover_failures
from nemo_gym.rollout_collection.recording.scan import Found, recover_output
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
    """The files of an earlier run that are needed to resume it and do not exist, or record nothing."""
    plan, output = config.materialized_jsonl_fpath, Path(config.output_jsonl_fpath)
    has_outcomes = output.exists() and any(map(_has_content, (output, failures_path_for(output))))
    return [
        *([] if plan.exists() else [str(plan)]),
        *([] if has_outcomes else [str(output)]),
    ]


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

    def __post_init__(self) -> None:
        self.output = Path(self.config.output_jsonl_fpath)
        self.materialized = self.config.materialized_jsonl_fpath

    def prepare(self) -> Prepared:
        earlier = Manifest.load(manifest_path_for(self.output))
        manifest = Manifest.new(
            manifest_path_for(self.output), self.config.model_dump(), self.servers.values
        ).resumed(earlier)
        changed = earlier.changed_servers(self.servers.values) if earlier is not None else []
        manifest.data["materialized_inputs"] = self._checked_inputs(earlier, changed)
        found = self._recovered_output()
        failures = failures_path_for(self.output)
        past, recovery = recover_failures(failures)
        self._report_repair(failures, recovery)
        past.worker_deaths = manifest.worker_deaths()
        work = remaining_work(self.materialized, found.index.keys, past, self.policy.max_rollout_attempts)
        self.servers.check_agents(work.to_run_by_agent)
        count_copied(found.columns, planned_rows(self.materialized))
        self._describe(work)
        return Prepared(work, manifest, True, found)

    def _checked_inputs(self, earlier: Manifest | None, changed: list[str]) -> Any:
        """The plan of this run; refuses one that differs from that of the earlier run."""
        inputs = earlier.data.get("materialized_inputs") if earlier is not None else None
        recipe = recipe_of(self.config, self.policy.roots)
        if find_input(self.config, self.policy.roots) is None:
            self.note(check_without_input(self.config, recipe, earlier))
            self._refuse(changed)
            return inputs
        # The manifest of a run that was killed while it changed to a larger plan still has the old plan.
        made = (recipe, _digest(self.materialized))
        if isinstance(inputs, dict) and (inputs.get("recipe"), inputs.get("sha256")) == made:
            self._refuse(changed)
            return inputs
        candidate = self.materialized.with_name(f".{self.materialized.name}.candidate.tmp")
        try:
            with new_file(candidate) as file:
                plan = materialize(self.config, self.policy.roots, file.write, self.servers.agents)
                self.servers.check_agents(plan.by_agent)
                for warning in plan.warnings():
                    self.note(warning)
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
    more = f"\n  … and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return listed(changed[:_SHOWN]) + more


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
