"""The plan of a run, on disk: `<stem>_materialized_inputs.jsonl`."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.codec import decode_json, encode_json
from nemo_gym.config import find_file, mask_secrets
from nemo_gym.config.roots import expand
from nemo_gym.errors import InputError
from nemo_gym.journal import read_lines
from nemo_gym.prompt import load_prompt_config
from nemo_gym.records import agent_of, parsed
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.planning.input_rows import InputLine, Plan, PlanLine
from nemo_gym.types import TASK_INDEX_KEY_NAME

_PLAN_FIELDS = (
    "agent_name",
    "limit",
    "num_repeats",
    "num_repeats_add_seed",
    "responses_create_params",
)
"""The settings that a plan depends on, besides the input file and the prompt file."""
INPUT_DIGEST = "input_sha256"
RECIPE_DIGEST = "sha256"
_MOST_NAMED = 5


@dataclass(frozen=True)
class Materialized:
    """A summary of the plan."""

    planned: int
    num_rows: int
    by_agent: Counter[str]
    digest: str
    """SHA-256 of all lines."""
    sample: bytes
    """The first line."""
    unused_repeats: list[str]

    def warnings(self) -> list[str]:
        """Warnings about a plan that can still be run."""
        if not self.unused_repeats:
            return []
        names = ", ".join(self.unused_repeats)
        return [f"warning: num_repeats has entries for agents that do not occur: {names}"]

    def as_data(self, recipe: dict[str, Any]) -> dict[str, Any]:
        """For the manifest."""
        return {
            "sha256": self.digest,
            "rollouts": self.planned,
            "by_agent": dict(self.by_agent),
            "recipe": recipe,
        }


def find_input(config: RolloutCollectionConfig, roots: Sequence[Path]) -> Path | None:
    """The input; a relative path is looked up in the working directory first."""
    return find_file(config.input_jsonl_fpath, (Path.cwd(), *roots))


def materialize(
    config: RolloutCollectionConfig,
    roots: Sequence[Path],
    write: Callable[[bytes], Any],
    agents: Sequence[str] = (),
) -> Materialized:
    """Plan the whole input; `write` gets each materialized line, newline included. `agents` are those to
    choose from, for the message about rows without one."""
    digest = hashlib.sha256()
    planned, sample = 0, b""
    plan = _new_plan(config, roots)
    plan.agents = agents
    for one in _planned_lines(plan, config, roots):
        line = one.line + b"\n"
        digest.update(line)
        write(line)
        planned += 1
        sample = sample or one.line
    return Materialized(
        planned, plan.num_rows, plan.rollouts_by_agent, digest.hexdigest(), sample, plan.unused_repeats()
    )


def materialized_before(path: Path, write: Callable[[bytes], Any]) -> Materialized:
    """The plan of an earlier run, as `materialize` returns it; rows are counted by task."""
    digest, by_agent, tasks = hashlib.sha256(), Counter[str](), set()
    sample = b""
    for line in read_lines(path):
        row = parsed(line.data)
        digest.update(line.data + b"\n")
        write(line.data + b"\n")
        by_agent[agent_of(row)] += 1
        tasks.add(row[TASK_INDEX_KEY_NAME])
        sample = sample or line.data
    return Materialized(by_agent.total(), len(tasks), by_agent, digest.hexdigest(), sample, [])


def materialized_rows(config: RolloutCollectionConfig, roots: Sequence[Path]) -> list[dict[str, Any]]:
    """The plan as a list of rows."""
    return [decode_json(one.line) for one in _planned_lines(_new_plan(config, roots), config, roots)]


def _new_plan(config: RolloutCollectionConfig, roots: Sequence[Path]) -> Plan:
    prompt = load_prompt_config(config.prompt_config, roots) if config.prompt_config is not None else None
    return Plan(config, config.input_jsonl_fpath, prompt)


def _planned_lines(plan: Plan, config: RolloutCollectionConfig, roots: Sequence[Path]) -> Iterator[PlanLine]:
    path = find_input(config, roots)
    if path is None:
        _refuse_folder(config.input_jsonl_fpath, roots)
        searched = ", ".join(map(str, roots))
        raise InputError(
            f"input_jsonl_fpath: {config.input_jsonl_fpath}: not found; searched in {searched}; "
            "check the path"
        )
    try:
        with path.open("rb") as file:
            yield from plan.materialize(
                InputLine(number, data.removesuffix(b"\n").removesuffix(b"\r"))
                for number, data in enumerate(file, 1)
            )
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its permissions") from error


def _refuse_folder(name: str, roots: Sequence[Path]) -> None:
    """Raise an error that names files to choose from, if the input is a folder."""
    folder = next((path for root in roots if (path := root / expand(name)).is_dir()), None)
    if folder is not None:
        files = sorted(path.name for path in folder.glob("*.jsonl"))[:_MOST_NAMED]
        example = f"one of its files: {', '.join(files)}" if files else "a JSONL file"
        raise InputError(f"input_jsonl_fpath: {name} is a folder; give {example}")


def recipe_of(config: RolloutCollectionConfig, roots: Sequence[Path]) -> dict[str, Any]:
    """The settings and files that make the plan, secrets hidden. The same recipe makes the same plan."""
    settings = config.model_dump(include=set(_PLAN_FIELDS))
    files = {INPUT_DIGEST: _file_digest(find_input(config, roots))}
    if config.prompt_config is not None:
        files["prompt_sha256"] = _file_digest(find_file(config.prompt_config, roots))
    recipe = {**settings, **files}
    # Computed before secrets are hidden: another secret is another recipe.
    return {**mask_secrets(recipe), RECIPE_DIGEST: hashlib.sha256(encode_json(recipe)).hexdigest()}


def _file_digest(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
