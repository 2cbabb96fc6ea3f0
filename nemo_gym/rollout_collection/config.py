"""The public configuration classes. Every field's text is what `--help` prints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from nemo_gym.path_utils import materialized_path_for
from nemo_gym.trackers import TrackerConfig

DEFAULT_PARALLEL = 256


def _no_flag(value: Any) -> Any:
    """Refuse `true` where a number is needed: it is a mistake, not a 1."""
    if isinstance(value, bool):
        raise ValueError("should be a number")
    return value


def _checked_repeats(value: Any) -> Any:
    """Refuse anything but numbers of repeats, always with the same message."""
    allowed = "a whole number of at least 1, or one per agent: {my_agent: 4, _default: 1}"
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
    """The settings of every kind of collection."""

    output_jsonl_fpath: str
    """The file for the rollouts, one JSON object per line. The other files of the run are written beside
    it, and their names begin with its name."""
    num_samples_in_parallel: Positive | None = None
    """Maximum number of rollouts in flight. null: 256."""
    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    """Override these parameters in every row: +responses_create_params.temperature=0.7"""
    upload_rollouts_to_wandb: bool = True
    """Upload the rollouts as a W&B table and as a file to MLflow, if these are configured."""
    disable_aggregation: bool = False
    """Skip the aggregate metrics, for shards that ng_aggregate_rollouts combines later."""
    call_timeout_s: Seconds = 900.0
    """Time limit, in seconds, of one try of a call to a model endpoint, and of one call to an environment (a
    tool, the verifier). The default allows a long generation on a busy endpoint."""
    rollout_timeout_s: Seconds = 3600.0
    """Time limit, in seconds, of one attempt of a rollout, verification and clean-up included. The time in
    which it waits for an endpoint that is down does not count."""
    outage_timeout_s: Seconds = 3600.0
    """How long rollouts wait, in seconds, for an endpoint that is down, refuses connections or limits the
    rate of calls. If no call to it has succeeded for this time, the run stops and can be resumed. Waiting
    counts neither as an attempt nor against the time limits."""
    stop_grace_s: Seconds = 5.0
    """Time, in seconds, that running rollouts get to finish after the first Ctrl-C or SIGTERM. A second one
    ends the run at once."""
    max_attempts: Positive = 6
    """How many failures because of servers, endpoints or time limits a rollout may have in one run before it
    has failed: failed attempts, or failed tries of a call to an endpoint. A rollout that fails because of its
    input gets two attempts per run, and NEMO_GYM_MAX_ROLLOUT_ATTEMPTS (default 3) across all runs."""
    retry_backoff_s: NotNegative = 2.0
    """Delay after the first of these failures, in seconds. It doubles for each later one, up to a minute.
    Each delay is shortened at random, by at most half."""
    max_failure_rate: NotNegative | None = None
    """Stop the run when more rollouts have failed than this. A value below 1 (0.2) is a share of the rollouts
    started so far; any other (50) is a number of rollouts. null: never stop."""
    max_run_time_s: Seconds | None = None
    """Start no more rollouts after this time, in seconds, since the start of the run. Running rollouts
    finish, and the run can be resumed. null: no limit."""
    max_total_tokens: Positive | None = None
    """Start no more rollouts once the rollouts recorded in this run have used this many tokens (the sum of
    their usage.total_tokens). Running rollouts finish, and the run can be resumed. null: no limit."""
    executor: str = "local"
    """Where rollouts are played. local: in this process. processes: in worker processes that each host the
    servers."""
    num_workers: Positive | None = None
    """Number of worker processes; used only with executor=processes. null: one per core."""
    hosting: Literal["auto", "embedded", "served"] = "auto"
    """Which servers to use: those of a running ng_run (served), or new ones in this process (embedded). auto:
    served if a head server responds and its servers match config_paths, else embedded."""
    adaptive_concurrency: bool = False
    """Adapt the number of concurrent calls to each model endpoint: more while calls succeed, fewer after 429
    and overload. num_samples_in_parallel remains the upper limit."""
    allow_changed_inputs: bool = False
    """On resume, continue even if inputs, overrides, model or agent differ from the earlier run."""
    dry_run: bool = False
    """Only print what would be run: counts, one materialized input, an estimate of tokens."""

    @property
    def parallel(self) -> int:
        """Maximum number of rollouts in flight."""
        return DEFAULT_PARALLEL if self.num_samples_in_parallel is None else self.num_samples_in_parallel


class RolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Play every row of an input file and write the rollouts with their rewards."""

    agent_name: str | None = None
    """The agent for rows without an `agent_ref`. null: the only agent of the configuration."""
    input_jsonl_fpath: str
    """The tasks, one JSON object per line. A relative path is searched for in the working directory,
    NEMO_GYM_EXTRA_ROOTS and the installed components."""
    limit: Positive | None = None
    """Use only this many lines of the input, from its start. null: all."""
    num_repeats: Repeats = 1
    """Rollouts per line: a number, or one per agent: {my_agent: 4, _default: 1}."""
    num_repeats_add_seed: bool = False
    """Set `seed` in the responses_create_params of each row to the number of the repeat."""
    resume_from_cache: bool = False
    """Continue the earlier run that wrote this output. The rollouts in it are not played again."""
    prompt_config: str | None = None
    """A YAML file with `user` and `system` prompts, from which the input of each row is built."""

    @property
    def materialized_jsonl_fpath(self) -> Path:
        return materialized_path_for(self.output_jsonl_fpath)


class E2ERolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Start all servers, prepare the datasets of every agent for a split, collect, and stop the servers."""

    split: Literal["train", "validation", "benchmark"]
    """Which datasets of the agents to play."""
    reuse_existing_data_preparation: bool = False
    """Use a dataset that is already prepared instead of preparing it again."""


class RolloutAggregationConfig(TrackerConfig):
    """Compute the metrics of shards that were collected separately."""

    input_glob: str
    """The shards: one glob pattern, or several separated by commas: 'results/rollouts-rs*.jsonl'"""
    output_jsonl_fpath: str
    """The file for the merged rollouts; the metrics are written beside it."""
    merge_shards: bool = True
    """Write the merged rollouts. false: write only the metrics."""
    skip_bad_lines: bool = False
    """Skip lines that are not rollouts, such as an incomplete last line, and list them. Without it, the first
    such line is an error."""
    upload_rollouts_to_wandb: bool = True
    """Upload the rollouts to the trackers that are configured."""
