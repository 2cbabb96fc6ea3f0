"""Published names exist, and importing a name loads only what it needs."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_gym
from tests.support.commands import ROOT

HEAVY = {
    "fastapi",
    "starlette",
    "pydantic",
    "aiohttp",
    "omegaconf",
    "numpy",
    "uvicorn",
    "orjson",
    "yaml",
    "hydra",
}

PUBLISHED = {
    "nemo_gym": "ROOT_DIR PARENT_DIR WORKING_DIR CACHE_DIR RESULTS_DIR __version__ open_servers ServerClient",
    "nemo_gym.base_resources_server": """BaseResourcesServerConfig BaseResourcesServer SimpleResourcesServer
        BaseRunRequest BaseVerifyRequest BaseVerifyResponse BaseMultiRewardVerifyResponse
        BaseSeedSessionRequest BaseSeedSessionResponse AggregateMetrics AggregateMetricsRequest
        NeMoGymResponse ReverifyMode""",
    "nemo_gym.base_responses_api_agent": """BaseResponsesAPIAgentConfig SimpleResponsesAPIAgent Body
        AggregateMetrics AggregateMetricsRequest""",
    "nemo_gym.base_responses_api_model": "BaseResponsesAPIModelConfig SimpleResponsesAPIModel Body",
    "nemo_gym.server_utils": """ServerClient HeadServer SimpleServer BaseServer SESSION_ID_KEY
        raise_for_status get_response_json request get_server_url get_first_server_config_dict
        get_global_config_dict
        is_nemo_gym_fastapi_entrypoint DEFAULT_HEAD_SERVER_PORT MAX_NUM_TRIES ClientResponse
        GlobalAIOHTTPAsyncClientConfig set_global_aiohttp_client is_global_aiohttp_client_setup
        get_global_aiohttp_client""",
    "nemo_gym.config_types": """BaseNeMoGymCLIConfig ModelServerRef ResourcesServerRef AgentServerRef
        BaseServerConfig BaseRunServerConfig BaseRunServerInstanceConfig Domain DatasetConfig
        BenchmarkDatasetConfig ConfigError AggregateMetrics AggregateMetricsRequest is_server_ref""",
    "nemo_gym.global_config": """get_global_config_dict maybe_get_global_config_dict set_global_config_dict
        GlobalConfigDictParser GlobalConfigDictParserConfig get_first_server_config_dict find_open_port
        get_wandb_run get_hf_token TASK_INDEX_KEY_NAME ROLLOUT_INDEX_KEY_NAME ATTEMPT_INDEX_KEY_NAME
        AGENT_REF_KEY_NAME RESPONSES_CREATE_PARAMS_KEY_NAME RESPONSE_KEY_NAME HEAD_SERVER_KEY_NAME
        CONFIG_PATHS_KEY_NAME DISALLOWED_PORTS_KEY_NAME HF_TOKEN_KEY_NAME POLICY_BASE_URL_KEY_NAME
        POLICY_API_KEY_KEY_NAME POLICY_MODEL_NAME_KEY_NAME POLICY_MODEL_KEY_NAME RESULTS_DIR_KEY_NAME
        CACHE_DIR_KEY_NAME SKILLS_REF_KEY_NAME""",
    "nemo_gym.openai_utils": """NeMoGymResponseCreateParamsNonStreaming NeMoGymResponse NeMoGymResponseInput
        NeMoGymResponseInputItem NeMoGymResponseOutputItem NeMoGymEasyInputMessage NeMoGymMessage
        NeMoGymResponseOutputMessage NeMoGymResponseOutputText NeMoGymResponseOutputRefusal
        NeMoGymResponseReasoningItem NeMoGymSummary NeMoGymResponseFunctionToolCall NeMoGymFunctionCallOutput
        NeMoGymResponseInputText NeMoGymFunctionToolParam NeMoGymResponseUsage
        NeMoGymResponseInputTokensDetails NeMoGymResponseOutputTokensDetails accumulate_response_usage
        NeMoGymEasyInputMessageForTraining NeMoGymMessageForTraining NeMoGymResponseOutputMessageForTraining
        NeMoGymResponseReasoningItemForTraining NeMoGymResponseFunctionToolCallForTraining
        TokenIDLogProbMixin TokenIDLogProbTypedDictMixin NeMoGymChatCompletion NeMoGymChoice
        NeMoGymChatCompletionMessage NeMoGymChatCompletionMessageForTraining
        NeMoGymChatCompletionMessageToolCall NeMoGymFunction NeMoGymChatCompletionCreateParamsNonStreaming
        NeMoGymChatCompletionUserMessageParam NeMoGymChatCompletionSystemMessageParam
        NeMoGymChatCompletionDeveloperMessageParam NeMoGymChatCompletionAssistantMessageParam
        NeMoGymChatCompletionToolMessageParam NeMoGymChatCompletionAssistantMessageForTrainingParam
        NeMoGymChatCompletionContentPartTextParam NeMoGymChatCompletionMessageParam
        NeMoGymChatCompletionMessageToolCallParam NeMoGymChatCompletionMessageToolCallFunctionParam
        NeMoGymChatCompletionToolParam NeMoGymFunctionDefinition NeMoGymAsyncOpenAI RATE_LIMIT_ERROR_CODES
        RETRY_ERROR_CODES""",
    "nemo_gym.judge": "call_judge JudgeError reraise_judge_errors judge_failsafe",
    "nemo_gym.reward_profile": "compute_aggregate_metrics AggregateMetrics AggregateMetricsRequest "
    "compute_pass_majority_metrics add_avg_sample_std_dev compute_subset_metrics highest_k_metrics "
    "RewardProfileConfig RewardProfiler profile_completion_summary",
    "nemo_gym.path_utils": "failures_path_for",
}

VALUES = {
    "TASK_INDEX_KEY_NAME": "_ng_task_index",
    "ROLLOUT_INDEX_KEY_NAME": "_ng_rollout_index",
    "ATTEMPT_INDEX_KEY_NAME": "_ng_attempt_index",
    "AGENT_REF_KEY_NAME": "agent_ref",
    "RESPONSES_CREATE_PARAMS_KEY_NAME": "responses_create_params",
    "RESPONSE_KEY_NAME": "response",
    "HEAD_SERVER_KEY_NAME": "head_server",
    "CONFIG_PATHS_KEY_NAME": "config_paths",
    "DISALLOWED_PORTS_KEY_NAME": "disallowed_ports",
    "HF_TOKEN_KEY_NAME": "hf_token",
    "POLICY_BASE_URL_KEY_NAME": "policy_base_url",
    "POLICY_API_KEY_KEY_NAME": "policy_api_key",
    "POLICY_MODEL_NAME_KEY_NAME": "policy_model_name",
    "POLICY_MODEL_KEY_NAME": "policy_model",
    "RESULTS_DIR_KEY_NAME": "results_dir",
    "CACHE_DIR_KEY_NAME": "cache_dir",
    "SKILLS_REF_KEY_NAME": "skills_ref",
}


@pytest.mark.parametrize("module", PUBLISHED)
def test_every_published_name_exists(module: str) -> None:
    loaded = importlib.import_module(module)
    assert [name for name in PUBLISHED[module].split() if not hasattr(loaded, name)] == []


def test_key_names_have_their_published_values() -> None:
    module = importlib.import_module("nemo_gym.global_config")
    assert {name: getattr(module, name) for name in VALUES} == VALUES


def test_published_constants_have_their_values() -> None:
    server_utils = importlib.import_module("nemo_gym.server_utils")
    assert server_utils.DEFAULT_HEAD_SERVER_PORT == 11000
    assert server_utils.SESSION_ID_KEY == "session_id"
    modes = importlib.import_module("nemo_gym.base_resources_server").ReverifyMode
    assert [mode.value for mode in modes] == ["stateless", "unsupported", "unknown"]
    failures = importlib.import_module("nemo_gym.path_utils").failures_path_for
    assert Path(failures("out/run.jsonl")) == Path("out/run_failures.jsonl")


@pytest.mark.parametrize("name", sorted(set(dir(nemo_gym)) - set(vars(nemo_gym))))
def test_every_lazy_name_of_the_package_resolves(name: str) -> None:
    value = getattr(nemo_gym, name)
    assert isinstance(value, Path) or value is getattr(importlib.import_module(value.__module__), name)


def test_missing_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_server'"):
        nemo_gym.open_server  # noqa: B018 - the access alone must raise


def test_folders_are_those_of_the_checkout_and_of_the_caller() -> None:
    assert nemo_gym.PARENT_DIR == nemo_gym.ROOT_DIR == ROOT
    assert nemo_gym.CACHE_DIR.parent == nemo_gym.RESULTS_DIR.parent == nemo_gym.WORKING_DIR


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded_by("import nemo_gym; nemo_gym.__version__; nemo_gym.ROOT_DIR; dir(nemo_gym)") & HEAVY


def test_importing_the_base_classes_loads_no_server_and_no_extra() -> None:
    loaded = loaded_by(
        "import nemo_gym.base_resources_server, nemo_gym.base_responses_api_agent, nemo_gym.judge,"
        "nemo_gym.base_responses_api_model, nemo_gym.openai_utils"
    )
    assert not loaded & {"uvicorn", "numpy", "torch", "openai", "hydra", "omegaconf"}


def test_collecting_loads_numpy_rich_and_tqdm_only_when_they_are_used() -> None:
    modules = "nemo_gym.cli.collect_rollouts, nemo_gym.metrics.profile, nemo_gym.cli.compare"
    assert not loaded_by(f"import {modules}") & {"rich", "tqdm"}
    assert "numpy" not in loaded_by("import nemo_gym.cli.collect_rollouts, nemo_gym.metrics.profile")
