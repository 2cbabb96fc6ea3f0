"""Top-level keys that no command has a field for, or that commands share. They are never unknown."""

from collections.abc import Collection
from dataclasses import dataclass

from nemo_gym.config.global_keys import GymSettings
from nemo_gym.types import (
    CACHE_DIR_KEY_NAME,
    CONFIG_PATHS_KEY_NAME,
    HF_TOKEN_KEY_NAME,
    POLICY_API_KEY_KEY_NAME,
    POLICY_BASE_URL_KEY_NAME,
    POLICY_MODEL_NAME_KEY_NAME,
    RESULTS_DIR_KEY_NAME,
    SKILLS_REF_KEY_NAME,
)

GLOBAL_SETTINGS = frozenset(
    {
        *GymSettings.model_fields,
        CACHE_DIR_KEY_NAME,
        CONFIG_PATHS_KEY_NAME,
        HF_TOKEN_KEY_NAME,
        POLICY_API_KEY_KEY_NAME,
        POLICY_BASE_URL_KEY_NAME,
        POLICY_MODEL_NAME_KEY_NAME,
        RESULTS_DIR_KEY_NAME,
        SKILLS_REF_KEY_NAME,
        "global_aiohttp_client_request_debug",
        "global_aiohttp_connector_limit",
        "global_aiohttp_connector_limit_per_host",
        "model_call_capture_dir",
        "observability_enabled",
        "server_name",
        "token_id_capture",
        "use_absolute_ip",
    }
)
"""Settings of the whole configuration and of the HTTP client, and published names that components read."""

COMMAND_SETTINGS = frozenset(
    {
        "adaptive_concurrency",
        "agent_name",
        "allow_changed_inputs",
        "call_timeout_s",
        "config_paths",
        "disable_aggregation",
        "dry_run",
        "executor",
        "hosting",
        "input_glob",
        "input_jsonl_fpath",
        "json_output",
        "limit",
        "max_attempts",
        "max_failure_rate",
        "max_restarts",
        "max_run_time_s",
        "max_total_tokens",
        "merge_shards",
        "mlflow_experiment_name",
        "mlflow_run_name",
        "mlflow_tracking_uri",
        "num_repeats",
        "num_repeats_add_seed",
        "num_samples_in_parallel",
        "num_workers",
        "outage_timeout_s",
        "output_jsonl_fpath",
        "prompt_config",
        "responses_create_params",
        "restart_policy",
        "resume_from_cache",
        "retry_backoff_s",
        "reuse_existing_data_preparation",
        "rollout_timeout_s",
        "skip_bad_lines",
        "split",
        "startup_timeout_s",
        "stop_grace_s",
        "upload_rollouts_to_wandb",
        "wandb_api_key",
        "wandb_name",
        "wandb_project",
    }
)
"""The settings of all commands that read a configuration. Each accepts those of the others, because one
configuration serves all of them; a test compares this list with their fields."""


DECLARE = "if an environment's code reads it, declare it in a YAML file of config_paths or in env.yaml"


@dataclass(frozen=True)
class AcceptedSettings:
    """The settings that a command or function accepts besides those of the configuration files."""

    fields: Collection[str]
    """Its own settings, which are suggested for unknown names."""
    also: Collection[str] = GLOBAL_SETTINGS | COMMAND_SETTINGS
    """Further names that it accepts."""
    otherwise: str = DECLARE
    """What to do about an unknown name that is like none of them."""
    only_near_misses: bool = False
    """Refuse only names that nearly match one of its settings; its caller may have settings of its own."""


FOR_SCRIPTS = AcceptedSettings(tuple(GymSettings.model_fields), only_near_misses=True)
"""A user's own script, which may have arguments of its own."""
FOR_PYTHON = AcceptedSettings(
    GLOBAL_SETTINGS | COMMAND_SETTINGS, otherwise=f"docs/configuration.md lists the settings; {DECLARE}"
)
"""Published functions that take the settings of a configuration."""
