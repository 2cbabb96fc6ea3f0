"""A dry run: what a run would do, in lines for people. It starts nothing and writes nothing."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.config import mask_secrets, max_rollout_attempts
from nemo_gym.config.hints import listed
from nemo_gym.errors import ChangedInputsError
from nemo_gym.journal import read_lines
from nemo_gym.path_utils import failures_path_for, manifest_path_for
from nemo_gym.records import Key, key_of, packed, parsed
from nemo_gym.rollout_collection.collection import misspelt_parameters
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.execution.executors import executor_named
from nemo_gym.rollout_collection.planning.materialize import (
    Materialized,
    find_input,
    materialize,
    materialized_before,
)
from nemo_gym.rollout_collection.planning.prepare import check_without_input
from nemo_gym.rollout_collection.planning.remaining import materialized_name
from nemo_gym.rollout_collection.recording.manifest import Manifest
from nemo_gym.rollout_collection.recording.recovery import PastFailures
from nemo_gym.rollout_collection.servers import Servers
from nemo_gym.types import RESPONSES_CREATE_PARAMS_KEY_NAME

_NOT_CHECKED = "The agents were not checked: no servers are configured, and no head server answers."
_CHARACTERS_A_TOKEN = 4
"""Of English text, roughly."""


def dry_run(config: RolloutCollectionConfig, servers: Servers | None) -> list[str]:
    """What would be run; raises what a run would refuse. Without servers the agents are not checked."""
    executor_named(config.executor)
    size, earlier = _Size(), _EarlierRun.of(config)

    def take(line: bytes) -> None:
        size.take(parsed(line))
        earlier.take(line)

    notes: list[str] = []
    if config.resume_from_cache and not earlier.missing and find_input(config) is None:
        notes.append(check_without_input(config, earlier.manifest))
        plan = materialized_before(config.materialized_jsonl_fpath, take)
    else:
        plan = materialize(config, take)
    if servers is not None:
        servers.check_agents(plan.by_agent)
        servers.check_settings()
    return [
        *notes,
        *misspelt_parameters(config),
        *plan.warnings(),
        f"Dry run: {plan.num_rows} rows, {plan.planned} rollouts; nothing is started or written.",
        *(f"  {agent}: {number} rollouts" for agent, number in plan.by_agent.most_common()),
        *([] if servers is not None else [_NOT_CHECKED]),
        *(earlier.resumption(plan, servers) if config.resume_from_cache else []),
        "The first materialized row:",
        json.dumps(mask_secrets(json.loads(plan.sample)), indent=2, ensure_ascii=False),
        str(size),
    ]


@dataclass
class _Size:
    """What the rollouts of a plan ask of their models."""

    characters: int = 0
    output_tokens: int | None = 0
    """Most of one call of every rollout; None where a row has no bound."""

    def take(self, row: dict[str, Any]) -> None:
        params = row[RESPONSES_CREATE_PARAMS_KEY_NAME]
        self.characters += len(json.dumps(params, ensure_ascii=False))
        bound = params.get("max_output_tokens")
        is_bounded = self.output_tokens is not None and isinstance(bound, int)
        self.output_tokens = self.output_tokens + bound if is_bounded else None

    def __str__(self) -> str:
        tokens = self.characters // _CHARACTERS_A_TOKEN
        most = self.output_tokens
        told = f", at most {most:,} output tokens a call" if most is not None else ""
        return f"About {tokens:,} input tokens for the first call of every rollout{told}"


@dataclass
class _EarlierRun:
    """What an earlier run left of the plan, read as it stands: what is torn counts as left."""

    config: RolloutCollectionConfig
    missing: list[str]
    """The files without which there is nothing to resume."""
    manifest: Manifest | None = None
    done: set[int] = field(default_factory=set)
    left_alone: set[int] = field(default_factory=set)
    rows: dict[int, int] = field(default_factory=dict)
    """Hashes of the rows of its plan, less those that the new one has too."""
    num_done: int = 0
    num_left_alone: int = 0
    num_changed: int = 0

    @classmethod
    def of(cls, config: RolloutCollectionConfig) -> "_EarlierRun":
        output, materialized = Path(config.output_jsonl_fpath), config.materialized_jsonl_fpath
        run = cls(config, [str(path) for path in (materialized, output) if not path.exists()])
        if config.resume_from_cache and not run.missing:
            run.manifest = Manifest.load(manifest_path_for(output))
            past = PastFailures()
            for key, record in _keyed(failures_path_for(output)):
                past.take(key, record)
            run.done = {packed(key) for key, _ in _keyed(output)}
            run.left_alone = set(past.left_alone(max_rollout_attempts())) - run.done
            for line in read_lines(materialized):
                run.rows[materialized_name(line.data, materialized)] = hash(line.data)
        return run

    def take(self, line: bytes) -> None:
        """One rollout of the plan."""
        name = materialized_name(line, self.config.materialized_jsonl_fpath)
        self.num_done += name in self.done
        self.num_left_alone += name in self.left_alone
        before = self.rows.pop(name, None)
        self.num_changed += before is not None and before != hash(line.removesuffix(b"\n"))

    def resumption(self, plan: Materialized, servers: Servers | None) -> list[str]:
        """How the plan would be carried on; refuses what a run would."""
        if self.missing:
            return [f"Nothing to resume: {' and '.join(self.missing)} not there. The run would start afresh."]
        changes = self._changes(servers)
        if changes and not self.config.allow_changed_inputs:
            raise ChangedInputsError(
                f"{self.config.output_jsonl_fpath} was collected with something else:{listed(changes)}\n"
                "A run would say what differs and stop, unless +allow_changed_inputs=true"
            )
        left = plan.planned - self.num_done - self.num_left_alone
        counts = f"{self.num_done} done, {self.num_left_alone} left alone, {left} left"
        return [f"Resuming: {plan.planned} rollouts planned, {counts}", *changes]

    def _changes(self, servers: Servers | None) -> list[str]:
        changes = []
        if self.manifest is not None and servers is not None:
            changes += self.manifest.changed_servers(servers.values)
        if self.num_changed:
            changes.append(f"{self.num_changed} rollouts have other inputs")
        if self.rows:
            changes.append(f"{len(self.rows)} rollouts of the earlier plan are not in this one")
        return changes


def _keyed(path: Path) -> Iterator[tuple[Key, dict[str, Any]]]:
    """The lines of a file that a resumed run would keep."""
    if not path.exists():
        return
    for line in read_lines(path):
        try:
            record = parsed(line.data)
        except (ValueError, RecursionError):
            continue
        key = key_of(record) if isinstance(record, dict) else None
        if key is not None:
            yield key, record
