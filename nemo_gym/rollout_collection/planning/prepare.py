"""Before the first rollout: write a new plan, or check and resume that of an earlier run."""

import os
from collections.abc import Sequence
from pathlib import Path

from nemo_gym.errors import ConfigError
from nemo_gym.journal import new_file, set_aside
from nemo_gym.path_utils import failures_path_for, files_of_run, manifest_path_for
from nemo_gym.rollout_collection.collection_policy import CollectionPolicy
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.planning.materialize import find_input, materialize, recipe_of
from nemo_gym.rollout_collection.planning.ready_run import Prepared
from nemo_gym.rollout_collection.planning.remaining import whole_plan
from nemo_gym.rollout_collection.planning.resumption import Note, Resumption
from nemo_gym.rollout_collection.recording.manifest import Manifest
from nemo_gym.rollout_collection.recording.output_lock import OutputLock
from nemo_gym.rollout_collection.run_servers import Servers

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
            return Resumption(config, servers, policy, note, lock).prepare()
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
