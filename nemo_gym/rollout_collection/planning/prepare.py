"""Before the first rollout: a fresh plan, or what an earlier run left of its own, checked against now."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.config import max_rollout_attempts
from nemo_gym.errors import ChangedInputsError, ConfigError
from nemo_gym.journal import Recovery, new_file, read_lines, set_aside
from nemo_gym.path_utils import failures_path_for, files_of_run, manifest_path_for
from nemo_gym.records import Key, parsed, unpacked
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.planning.materialize import (
    INPUT_DIGEST,
    RECIPE_DIGEST,
    find_input,
    materialize,
    recipe_of,
)
from nemo_gym.rollout_collection.planning.remaining import Owed, materialized_name
from nemo_gym.rollout_collection.recording.manifest import Manifest, differences, flattened
from nemo_gym.rollout_collection.recording.recovery import forget_failures, read_failures
from nemo_gym.rollout_collection.recording.scan import Found, recover_output
from nemo_gym.rollout_collection.servers import Servers

Note = Callable[[str], None]
_SHOWN = 10


@dataclass
class Prepared:
    """What there is to do, and what is done already."""

    owed: Owed
    manifest: Manifest
    is_resumed: bool = False
    found: Found = field(default_factory=Found)
    """The rollouts in the output: those of earlier runs, then this one's too."""


def prepare_folder(config: RolloutCollectionConfig) -> None:
    """Make the output's folder; refuse an output that cannot be one, and an input that it would replace."""
    output = Path(config.output_jsonl_fpath)
    other = "choose another +output_jsonl_fpath="
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_jsonl_fpath: cannot write {output}: {error.strerror}; {other}") from error
    if output.exists() and not output.is_file():
        raise ConfigError(f"output_jsonl_fpath: {output} is a folder or a device, not a file; {other}")
    if not os.access(output.parent, os.W_OK):
        raise ConfigError(f"output_jsonl_fpath: {output.parent} is not writable; make it so, or {other}")
    source = find_input(config)
    if source is not None and any(path.exists() and source.samefile(path) for path in files_of_run(output)):
        raise ConfigError(f"input_jsonl_fpath: {source} is a file that a run into {output} writes; {other}")


def prepare(config: RolloutCollectionConfig, servers: Servers, note: Note) -> Prepared:
    """Write the plan, or take up the earlier run's."""
    output, materialized = Path(config.output_jsonl_fpath), config.materialized_jsonl_fpath
    if config.resume_from_cache:
        missing = [str(path) for path in (materialized, output) if not path.exists()]
        if not missing:
            return _Resuming(config, servers, note).prepare()
        note(f"Nothing to resume: {' and '.join(missing)} not there. Starting afresh.")
    return _start_afresh(config, servers, note)


def _start_afresh(config: RolloutCollectionConfig, servers: Servers, note: Note) -> Prepared:
    output, materialized = Path(config.output_jsonl_fpath), config.materialized_jsonl_fpath
    with new_file(materialized) as file:
        plan = materialize(config, file.write)
        servers.check_agents(plan.by_agent)
        for warning in plan.warnings():
            note(warning)
        file.flush()  # a full disk shows itself before the earlier run is set aside
        moved = set_aside(files_of_run(output))
    if moved:
        names = ", ".join(path.name for path in moved)
        hint = "" if config.resume_from_cache else " (+resume_from_cache=true carries it on instead)"
        note(f"An earlier run's files are set aside: {names}{hint}")
    manifest = Manifest.new(manifest_path_for(output), config.model_dump(), servers.values)
    manifest.data["materialized_inputs"] = plan.as_data(recipe_of(config))
    owed = Owed(
        materialized, max_attempts=max_rollout_attempts(), by_agent=plan.by_agent, planned=plan.planned
    )
    return Prepared(owed, manifest)


@dataclass
class _Resuming:
    """One resumption."""

    config: RolloutCollectionConfig
    servers: Servers
    note: Note

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
        prepared = Prepared(Owed(self.materialized, max_attempts=max_rollout_attempts()), manifest, True)
        self._take_up(prepared)
        return prepared

    def _checked_inputs(self, earlier: Manifest | None, changed: list[str]) -> Any:
        """The plan that this run goes by; what differs from the earlier run's is refused."""
        inputs = earlier.data.get("materialized_inputs") if earlier is not None else None
        recipe = recipe_of(self.config)
        if find_input(self.config) is None:
            self.note(check_without_input(self.config, earlier))
            self._refuse(changed)
            return inputs
        # A run that was killed while it took on a larger plan has not got that far in its manifest.
        made = (recipe, _digest(self.materialized))
        if isinstance(inputs, dict) and (inputs.get("recipe"), inputs.get("sha256")) == made:
            self._refuse(changed)
            return inputs
        candidate = self.materialized.with_name(f".{self.materialized.name}.candidate.tmp")
        try:
            with new_file(candidate) as file:
                plan = materialize(self.config, file.write)
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
        """Rollouts that were played keep the inputs they were played with; gives the new plan's digest.

        Failures of inputs that have changed no longer count.
        """
        found, recovery = recover_output(self.output)
        self._tell(self.output, recovery)
        played, changed = set(found.index.keys), set()
        before = {
            materialized_name(line.data, self.materialized): line.offset
            for line in read_lines(self.materialized)
        }
        with self.materialized.open("rb") as earlier, new_file(candidate) as file:
            for line in read_lines(candidate):
                now, name = line.data + b"\n", materialized_name(line.data, candidate)
                then = now
                if name in before:
                    earlier.seek(before[name])
                    then = earlier.readline()
                if then != now:
                    changed.add(name)
                file.write(then if name in played else now)
        failures = failures_path_for(self.output)
        self._tell(failures, forget_failures(failures, changed - played))
        return _digest(candidate)

    def _refuse(self, changed: list[str]) -> None:
        if not changed:
            return
        text = _listed(changed)
        if not self.config.allow_changed_inputs:
            raise ChangedInputsError(
                f"{self.output} was collected with something else:{text}\n"
                "Resume with the same, choose another +output_jsonl_fpath=, or go on all the same with "
                "+allow_changed_inputs=true"
            )
        self.note(f"Going on although this differs from the earlier run:{text}")

    def _take_up(self, prepared: Prepared) -> None:
        owed = prepared.owed
        prepared.found, recovery = recover_output(self.output)
        self._tell(self.output, recovery)
        owed.done = set(prepared.found.index.keys)
        failures = failures_path_for(self.output)
        past, recovery = read_failures(failures)
        self._tell(failures, recovery)
        owed.data_attempts, owed.attempts = past.data_attempts, past.attempts
        owed.left_alone = {
            name: kind for name, kind in past.left_alone(owed.max_attempts).items() if name not in owed.done
        }
        owed.count()
        self.servers.check_agents(owed.by_agent)
        if owed.not_planned:
            self.note(f"{owed.not_planned} rollouts in {self.output} are not in the plan; they stay there")
        if owed.left_alone_by_class:
            self.note(
                f"{owed.left_alone_by_class.total()} rollouts are left alone: their failures have used up "
                f"NEMO_GYM_MAX_ROLLOUT_ATTEMPTS={owed.max_attempts} (a larger number tries them again), "
                "or are final"
            )
        done = owed.planned - owed.to_run - owed.left_alone_by_class.total()
        self.note(f"Resuming: {owed.planned} rollouts planned, {done} done, {owed.to_run} left")

    def _tell(self, path: Path, recovery: Recovery) -> None:
        for number, reason in recovery.set_aside[:_SHOWN]:
            self.note(f"{path}:{number}: the line {reason}; it is set aside in {recovery.kept_in}")
        if len(recovery.set_aside) > _SHOWN:
            self.note(f"… and {len(recovery.set_aside) - _SHOWN} more lines like that")


def check_without_input(config: RolloutCollectionConfig, earlier: Manifest | None) -> str:
    """Refuse to change a plan whose input is gone; gives what to say where it stays as it was."""
    inputs = earlier.data.get("materialized_inputs") if earlier is not None else None
    if other := changed_recipe(inputs, recipe_of(config)):
        raise ChangedInputsError(
            f"{config.input_jsonl_fpath} is not there, and to change the plan takes it:"
            f"{_listed(other)}\nPut it back, or resume with the settings of the earlier run"
        )
    return f"{config.input_jsonl_fpath} is not there; going on with {config.materialized_jsonl_fpath}"


def changed_recipe(inputs: Any, now: dict[str, Any]) -> list[str]:
    """What would make another plan, where the input itself cannot be compared."""
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
    """What the new plan does not have as the earlier one had it. More rollouts are no change."""
    hashes = {
        materialized_name(line.data, before): (line.offset, hash(line.data)) for line in read_lines(before)
    }
    changes: dict[str, list[Key]] = {}
    for line in read_lines(now):
        name = materialized_name(line.data, now)
        found = hashes.pop(name, None)
        if found is not None and found[1] != hash(line.data):
            for change in _row_differences(_line_at(before, found[0]), line.data):
                changes.setdefault(change, []).append(unpacked(name))
    texts = [f"{change} ({_of(keys)})" for change, keys in changes.items()]
    if hashes:
        texts.append(
            f"{len(hashes)} rollouts of the earlier plan are not in this one (limit or num_repeats?)"
        )
    return texts


def _listed(changed: list[str]) -> str:
    more = f"\n  … and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return "".join(f"\n  {line}" for line in changed[:_SHOWN]) + more


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
