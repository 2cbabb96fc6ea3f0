"""Published names of the process-wide configuration. Re-exports only."""

from nemo_gym.config.current import (
    get_global_config_dict,
    get_hf_token,
    get_wandb_run,
    maybe_get_global_config_dict,
    set_global_config_dict,
)
from nemo_gym.config.parser import (
    GlobalConfigDictParser,
    GlobalConfigDictParserConfig,
    get_first_server_config_dict,
)
from nemo_gym.config.ports import find_open_port
from nemo_gym.types import (
    AGENT_REF_KEY_NAME,
    ATTEMPT_INDEX_KEY_NAME,
    CACHE_DIR_KEY_NAME,
    CONFIG_PATHS_KEY_NAME,
    DISALLOWED_PORTS_KEY_NAME,
    HEAD_SERVER_KEY_NAME,
    HF_TOKEN_KEY_NAME,
    POLICY_API_KEY_KEY_NAME,
    POLICY_BASE_URL_KEY_NAME,
    POLICY_MODEL_KEY_NAME,
    POLICY_MODEL_NAME_KEY_NAME,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    RESULTS_DIR_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

__all__ = [
    "AGENT_REF_KEY_NAME",
    "ATTEMPT_INDEX_KEY_NAME",
    "CACHE_DIR_KEY_NAME",
    "CONFIG_PATHS_KEY_NAME",
    "DISALLOWED_PORTS_KEY_NAME",
    "HEAD_SERVER_KEY_NAME",
    "HF_TOKEN_KEY_NAME",
    "POLICY_API_KEY_KEY_NAME",
    "POLICY_BASE_URL_KEY_NAME",
    "POLICY_MODEL_KEY_NAME",
    "POLICY_MODEL_NAME_KEY_NAME",
    "RESPONSES_CREATE_PARAMS_KEY_NAME",
    "RESPONSE_KEY_NAME",
    "RESULTS_DIR_KEY_NAME",
    "ROLLOUT_INDEX_KEY_NAME",
    "SKILLS_REF_KEY_NAME",
    "TASK_INDEX_KEY_NAME",
    "GlobalConfigDictParser",
    "GlobalConfigDictParserConfig",
    "find_open_port",
    "get_first_server_config_dict",
    "get_global_config_dict",
    "get_hf_token",
    "get_wandb_run",
    "maybe_get_global_config_dict",
    "set_global_config_dict",
]
