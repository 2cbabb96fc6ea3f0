"""A dry run: what a run would do, as lines for people. It starts nothing and writes nothing."""

import json
from dataclasses import dataclass
from typing import Any

from nemo_gym.config import mask_secrets
from nemo_gym.config.hints import listed
from nemo_gym.errors import ChangedInputsError
from nemo_gym.records import parsed
from nemo_gym.rollout_collection.collection_policy import CollectionPolicy
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.execution.executor_table import executor_named
from nemo_gym.rollout_collection.planning.materialize import (
    find_input,
    materialize,
    materialized_before,
    recipe_of,
)
from nemo_gym.rollout_collection.planning.parameters import misspelt_parameters
from nemo_gym.rollout_collection.planning.plan_changes import check_without_input
from nemo_gym.rollout_collection.planning.prepare import check_output, missing_to_resume
from nemo_gym.rollout_collection.planning.preview import ResumePreview
from nemo_gym.rollout_collection.planning.remaining import RemainingWork
from nemo_gym.rollout_collection.run_servers import Servers
from nemo_gym.terminal import counted
from nemo_gym.types import RESPONSES_CREATE_PARAMS_KEY_NAME

_NOT_CHECKED = "The agents were not checked: no servers are configured, and no head server responds."
_CHARACTERS_PER_TOKEN = 4
"""Of English text, roughly."""


def dry_run(config: RolloutCollectionConfig, servers: Servers | None, policy: CollectionPolicy) -> list[str]:
    """The lines of a dry run. Raises the errors of a run. Without servers, agents are not checked."""
    config = config if servers is None else servers.with_only_agent(config)
    executor_kind = executor_named(config.executor)
    check_output(config, policy.roots)
    size, resumption = _Size(), ResumePreview.of(config, policy.max_rollout_attempts)

    def take(line: bytes) -> None:
        size.take(parsed(line))
        if resumption is not None:
            resumption.take(line)

    notes: list[str] = []
    if resumption is not None and find_input(config, policy.roots) is None:
        recipe = recipe_of(config, policy.roots)
        notes.append(check_without_input(config, recipe, resumption.manifest))
        plan = materialized_before(config.materialized_jsonl_fpath, take)
    else:
        agents = servers.agents if servers is not None else ()
        plan = materialize(config, policy.roots, take, agents)
    if servers is not None:
        executor_kind.check(servers)
        servers.check_agents(plan.by_agent)
        servers.check_settings()
    return [
        *notes,
        *(servers.notes if servers is not None else ()),
        *misspelt_parameters(config),
        *plan.warnings(),
        f"Dry run: {counted(plan.num_rows, 'row')}, {counted(plan.planned, 'rollout')}; "
        "nothing is started or written.",
        *(f"  {agent}: {counted(number, 'rollout')}" for agent, number in plan.by_agent.most_common()),
        *([] if servers is not None else [_NOT_CHECKED]),
        *(_resumption_lines(config, resumption, servers) if config.resume_from_cache else []),
        "The first materialized input:",
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
        output = f" and at most {most:,} output tokens" if most is not None else ""
        return f"About {tokens:,} input tokens{output} in total, for the first call of each rollout"


def _resumption_lines(
    config: RolloutCollectionConfig, resumption: ResumePreview | None, servers: Servers | None
) -> list[str]:
    """How the run would be continued. Raises the errors that a run would raise."""
    if resumption is None:
        missing = " and ".join(missing_to_resume(config))
        return [f"Nothing to resume: {missing} not found or empty. The run would start from the beginning."]
    changes = resumption.changes(servers)
    if changes and not config.allow_changed_inputs:
        raise ChangedInputsError(
            f"{config.output_jsonl_fpath} was collected with different inputs or settings:{listed(changes)}\n"
            "A run would stop with this error; +allow_changed_inputs=true continues anyway"
        )
    return [_counts(resumption.work.result()), *changes]


def _counts(work: RemainingWork) -> str:
    counts = f"{work.num_done} done, {work.num_skipped} skipped, {work.to_run} remaining"
    return f"Resuming: {counted(work.planned, 'rollout')} planned, {counts}"
