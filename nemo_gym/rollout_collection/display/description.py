"""The first lines of a run: what it is going to do."""

from collections.abc import Mapping
from typing import Any

from nemo_gym.config import mask_secrets
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.execution.executor_table import ExecutorKind
from nemo_gym.rollout_collection.run_servers import Servers
from nemo_gym.terminal import counted
from nemo_gym.types import RESPONSES_CREATE_PARAMS_KEY_NAME


def described(config: RolloutCollectionConfig, executor: ExecutorKind, servers: Servers) -> list[str]:
    repeats = config.num_repeats if config.num_repeats is not None else 1
    parts = [
        f"limit {config.limit}" if config.limit is not None else "all rows",
        f"repeats {repeats}",
        "with seeds" if config.num_repeats_add_seed else "",
        f"agent {config.agent_name}" if config.agent_name else "the agents of the rows",
        f"overrides {_masked(overrides)}" if (overrides := config.responses_create_params) else "",
        f"prompt {config.prompt_config}" if config.prompt_config else "",
    ]
    adaptive = ", adaptive" if config.adaptive_concurrency else ""
    return [
        f"Collecting {config.input_jsonl_fpath} into {config.output_jsonl_fpath}: "
        + ", ".join(part for part in parts if part),
        f"At most {counted(config.parallel, 'rollout')} in flight{adaptive}; "
        f"servers {executor.where(config, servers)}",
        *servers.notes,
    ]


def _masked(overrides: Mapping[str, Any]) -> Any:
    return mask_secrets({RESPONSES_CREATE_PARAMS_KEY_NAME: overrides})[RESPONSES_CREATE_PARAMS_KEY_NAME]
