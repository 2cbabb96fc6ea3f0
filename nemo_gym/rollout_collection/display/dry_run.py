"""A dry run: what a run would do, as lines for people. It starts nothing and writes nothing."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.config import mask_secrets
from nemo_gym.config.hints import listed
from nemo_gym.errors import ChangedInputsError
from nemo_gym.journal import read_lines
from nemo_gym.path_utils import failures_path_for, manifest_path_for
from nemo_gym.records import packed, parsed
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.execution.executor_table import executor_named
from nemo_gym.rollout_collection.planning.materialize import find_input, materialize, materialized_before
from nemo_gym.rollout_collection.planning.parameters import misspelt_parameters
from nemo_gym.rollout_collection.planning.prepare import check_without_input, missing_to_resume
from nemo_gym.rollout_collection.planning.remaining import RemainingWork, WorkCount, packed_key_of
from nemo_gym.rollout_collection.recording.manifest import Manifest
from nemo_gym.rollout_collection.recording.recovery import read_failures, read_keyed
from nemo_gym.rollout_collection.servers import Servers
from nemo_gym.types import RESPONSES_CREATE_PARAMS_KEY_NAME

_NOT_CHECKED = "The agents were not checked: no servers are configured, and no head server responds."
_CHARACTERS_PER_TOKEN = 4
"""Of English text, roughly."""


def dry_run(config: RolloutCollectionConfig, servers: Servers | None, max_attempts: int) -> list[str]:
    """The lines of a dry run. Raises the errors of a run. Without servers, agents are not checked."""
    executor_named(config.executor)
    size, resumption = _Size(), _Resumption.of(config, max_attempts)

    def take(line: bytes) -> None:
        size.take(parsed(line))
        if resumption is not None:
            resumption.take(line)

    notes: list[str] = []
    if resumption is not None and find_input(config) is None:
        notes.append(check_without_input(config, resumption.manifest))
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
        *(_resumption_lines(config, resumption, servers) if config.resume_from_cache else []),
        "The first materialized row:",
        json.dumps(mask_secrets(json.loads(plan.sample)), indent=2, ensure_ascii=False),
        str(size),
    ]


@dataclass
class _Size:
    """The size of the requests of a plan."""

    characters: int = 0
    output_tokens: int | None = 0
    """The limits of all rows, for one call each; None if a row has no limit."""

    def take(self, row: dict[str, Any]) -> None:
        params = row[RESPONSES_CREATE_PARAMS_KEY_NAME]
        self.characters += len(json.dumps(params, ensure_ascii=False))
        limit = params.get("max_output_tokens")
        is_limited = self.output_tokens is not None and isinstance(limit, int)
        self.output_tokens = self.output_tokens + limit if is_limited else None

    def __str__(self) -> str:
        tokens = self.characters // _CHARACTERS_PER_TOKEN
        most = self.output_tokens
        output = f", at most {most:,} output tokens per call" if most is not None else ""
        return f"About {tokens:,} input tokens for the first call of every rollout{output}"


@dataclass
class _Resumption:
    """How an earlier run would be continued. Its files are not repaired: a torn line counts as missing."""

    manifest: Manifest | None
    work: WorkCount
    plan: Path
    rows: dict[int, int] = field(default_factory=dict)
    """Hashes of the rows of the earlier plan that have not occurred in the new plan yet, by packed key."""
    num_changed: int = 0

    @classmethod
    def of(cls, config: RolloutCollectionConfig, max_attempts: int) -> "_Resumption | None":
        """None if there is nothing to resume."""
        if not config.resume_from_cache or missing_to_resume(config):
            return None
        output, plan = Path(config.output_jsonl_fpath), config.materialized_jsonl_fpath
        done = {packed(key) for key, _ in read_keyed(output)}
        work = WorkCount(plan, done, read_failures(failures_path_for(output)), max_attempts)
        rows = {packed_key_of(line.data, plan): hash(line.data) for line in read_lines(plan)}
        return cls(Manifest.load(manifest_path_for(output)), work, plan, rows)

    def take(self, line: bytes) -> None:
        """One rollout of the new plan."""
        packed_key = packed_key_of(line, self.plan)
        before = self.rows.pop(packed_key, None)
        if before is not None and before != hash(line.removesuffix(b"\n")):
            self.num_changed += 1
            self.work.forget_failures(packed_key)
        self.work.take(line)

    def changes(self, servers: Servers | None) -> list[str]:
        changes = []
        if self.manifest is not None and servers is not None:
            changes += self.manifest.changed_servers(servers.values)
        if self.num_changed:
            changes.append(f"{self.num_changed} rollouts have other inputs")
        if self.rows:
            changes.append(f"{len(self.rows)} rollouts of the earlier plan are not in this one")
        return changes


def _resumption_lines(
    config: RolloutCollectionConfig, resumption: _Resumption | None, servers: Servers | None
) -> list[str]:
    """How the run would be continued. Raises the errors that a run would raise."""
    if resumption is None:
        missing = " and ".join(missing_to_resume(config))
        return [f"Nothing to resume: {missing} not found. The run would start from the beginning."]
    changes = resumption.changes(servers)
    if changes and not config.allow_changed_inputs:
        raise ChangedInputsError(
            f"{config.output_jsonl_fpath} was collected with other inputs or settings:{listed(changes)}\n"
            "A run would stop with this error; +allow_changed_inputs=true continues anyway"
        )
    return [_counts(resumption.work.result()), *changes]


def _counts(work: RemainingWork) -> str:
    counts = f"{work.num_done} done, {work.num_skipped} skipped, {work.to_run} remaining"
    return f"Resuming: {work.planned} rollouts planned, {counts}"
