"""The public configuration classes. Every field's text is what `--help` prints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from nemo_gym.path_utils import materialized_path_for
from nemo_gym.trackers import TrackerConfig

DEFAULT_PARALLEL = 256


def _no_flag(value: Any) -> Any:
    """`true` is a mistake where a number is meant, not a 1."""
    if isinstance(value, bool):
        raise ValueError("should be a number")
    return value


def _checked_repeats(value: Any) -> Any:
    """One message, whatever is wrong with them."""
    allowed = "a whole number from 1 on, or one for each agent: {my_agent: 4, _default: 1}"
    if isinstance(value, Mapping):
        for agent, count in value.items():
            if not isinstance(agent, str) or not _is_count(count):
                raise ValueError(f"{count!r} for {agent!r} is not allowed: should be {allowed}")
    elif value is not None and not _is_count(value):
        raise ValueError(f"should be {allowed}")
    return value


def _is_count(value: Any) -> bool:
    if isinstance(value, str):
        return value.isdecimal() and int(value) >= 1
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 1 and value % 1 == 0


Positive = Annotated[int, Field(ge=1), BeforeValidator(_no_flag)]
Seconds = Annotated[float, Field(gt=0), BeforeValidator(_no_flag)]
NotNegative = Annotated[float, Field(ge=0), BeforeValidator(_no_flag)]
Repeats = Annotated[Positive | dict[str, Positive] | None, BeforeValidator(_checked_repeats)]


class SharedRolloutCollectionConfig(TrackerConfig):
    """What every kind of collection takes."""

    output_jsonl_fpath: str
    """Where the rollouts go, one JSON object a line; all other files stand beside it, named after it."""
    num_samples_in_parallel: Positive | None = None
    """Most rollouts in flight at once. null: 256."""
    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    """Laid over each row's own, key by key: +responses_create_params.temperature=0.7"""
    upload_rollouts_to_wandb: bool = True
    """Upload the rollouts as one W&B table, and as a file to MLflow; only where one is configured."""
    disable_aggregation: bool = False
    """Skip the aggregate metrics: for shards that ng_aggregate_rollouts puts together later."""
    call_timeout_s: Seconds = 900.0
    """Longest time, in seconds, for one try of a call to a model endpoint and for one call to an environment
    (a tool, the verifier). Long enough for a long generation on a busy endpoint."""
    rollout_timeout_s: Seconds = 3600.0
    """Longest time, in seconds, for one try of a rollout, verification and clean-up included."""
    max_attempts: Positive = 6
    """Tries of a rollout that fails because of servers, endpoints or time. One whose input is at fault is
    tried twice at most, and over all runs as often as NEMO_GYM_MAX_ROLLOUT_ATTEMPTS says (3)."""
    retry_backoff_s: NotNegative = 2.0
    """Wait before the second try, in seconds; doubles on each later one up to a minute, half of it random."""
    max_failure_rate: NotNegative | None = None
    """Give up early when more fail than this: a share of those started if below 1 (0.2), else a count (50).
    null: never."""
    executor: str = "local"
    """Where rollouts are played. local: in this process. processes: in worker processes that each host the
    servers."""
    num_workers: Positive | None = None
    """Worker processes with executor=processes. null: one for each core."""
    hosting: Literal["auto", "embedded", "served"] = "auto"
    """Which servers play: those a running ng_run looks after (served), or our own in this process (embedded).
    auto: served where a head server answers, else embedded."""
    adaptive_concurrency: bool = False
    """Let the number of calls at each model endpoint follow its answers: more while all goes well, fewer on
    429 and overload. num_samples_in_parallel stays the ceiling."""
    allow_changed_inputs: bool = False
    """On resume, go on although inputs, overrides, model or agent differ from the earlier run."""
    dry_run: bool = False
    """Say what would be run: counts, one materialized row, an estimate of tokens. Starts nothing."""

    @property
    def parallel(self) -> int:
        """Most rollouts in flight."""
        return DEFAULT_PARALLEL if self.num_samples_in_parallel is None else self.num_samples_in_parallel


class RolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Play every row of an input file and keep the scored rollouts."""

    agent_name: str | None = None
    """The agent for rows that name none in `agent_ref`."""
    input_jsonl_fpath: str
    """The tasks, one JSON object a line. Relative paths are looked for under NEMO_GYM_EXTRA_ROOTS, the
    working directory and the installed components."""
    limit: Positive | None = None
    """Take only the first so many lines of the input. null: all."""
    num_repeats: Repeats = 1
    """Rollouts for each line: a number, or one for each agent: {my_agent: 4, _default: 1}."""
    num_repeats_add_seed: bool = False
    """Put the number of the repeat into the row's responses_create_params as `seed`."""
    resume_from_cache: bool = False
    """Go on with an earlier run into the same output: what it holds is not run again."""
    prompt_config: str | None = None
    """A prompt YAML (`user`, `system`) that builds each row's input from its fields."""

    @property
    def materialized_jsonl_fpath(self) -> Path:
        return materialized_path_for(self.output_jsonl_fpath)


class E2ERolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Start every server, prepare each agent's datasets of a split, collect, and stop the servers."""

    split: Literal["train", "validation", "benchmark"]
    """Which of the agents' datasets are played."""
    reuse_existing_data_preparation: bool = False
    """Use a prepared dataset that is already there instead of preparing it again."""


class RolloutAggregationConfig(TrackerConfig):
    """Metrics over shards that were collected one by one."""

    input_glob: str
    """The shards: one glob, or several with commas between them: 'results/rollouts-rs*.jsonl'"""
    output_jsonl_fpath: str
    """Where the merged rollouts go; the metrics stand beside it."""
    merge_shards: bool = True
    """Write the merged rollouts. false: only the metrics."""
    skip_bad_lines: bool = False
    """Leave out lines that are no rollouts, such as a torn one, and name them; else the first is an error."""
    upload_rollouts_to_wandb: bool = True
    """Upload the rollouts to the trackers, too; only where one is configured."""
