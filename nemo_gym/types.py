"""Names of keys in rows, rollouts and configuration files."""

from typing import Literal

ServerKind = Literal["resources_servers", "responses_api_agents", "responses_api_models"]
SERVER_KINDS: tuple[ServerKind, ...] = ("resources_servers", "responses_api_agents", "responses_api_models")

SESSION_ID_KEY = "session_id"

ACTIVITY_PATH = "/ng_activity"
"""The path at which a server process reports what its rollouts are waiting for."""

TASK_INDEX_KEY_NAME = "_ng_task_index"
ROLLOUT_INDEX_KEY_NAME = "_ng_rollout_index"
ATTEMPT_INDEX_KEY_NAME = "_ng_attempt_index"
NON_FINITE_KEY_NAME = "_ng_non_finite"
"""The fields of a rollout that were NaN or infinite. JSON has no such numbers, so their values are null."""
STEPS_KEY_NAME = "_ng_steps"
"""How many model calls the agent made."""
TOOLS_KEY_NAME = "_ng_tools"
"""The agent's tool calls: `{name: {calls, failed, unknown, invalid}}`."""
STOPPED_BY_KEY_NAME = "_ng_stopped_by"
"""The limit at which the agent ended the episode, such as `max_steps`."""
UNKNOWN_TOOL_HEADER = "x-nemo-gym-unknown-tool"
"""On a 404 of an environment because it has no such tool."""
TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
"""The token fields of one model call, in the last item that it generated."""
LOG_PROBS_MODE_KEY_NAME = "generation_log_probs_mode"
"""The kind of log-probabilities, in vLLM's terms: `raw_logprobs` (before temperature and filters) or
`processed_logprobs` (after)."""
AGENT_REF_KEY_NAME = "agent_ref"
RESPONSES_CREATE_PARAMS_KEY_NAME = "responses_create_params"
RESPONSE_KEY_NAME = "response"
SKILLS_REF_KEY_NAME = "skills_ref"

NG_FAILURE_CLASS_KEY = "_ng_failure_class"
NG_FAILURE_COUNT_KEY = "_ng_failure_count"
NG_JUDGE_ERROR_KEY = "_ng_failure_judge_error"
NG_NO_PERSIST_KEY = "_ng_no_persist"
NG_TERMINAL_KEY = "_ng_failure_terminal"

HEAD_SERVER_KEY_NAME = "head_server"
CONFIG_PATHS_KEY_NAME = "config_paths"
DISALLOWED_PORTS_KEY_NAME = "disallowed_ports"
HF_TOKEN_KEY_NAME = "hf_token"
POLICY_BASE_URL_KEY_NAME = "policy_base_url"
POLICY_API_KEY_KEY_NAME = "policy_api_key"
POLICY_MODEL_NAME_KEY_NAME = "policy_model_name"
POLICY_MODEL_KEY_NAME = "policy_model"
RESULTS_DIR_KEY_NAME = "results_dir"
CACHE_DIR_KEY_NAME = "cache_dir"
