"""Groups of a real model through the Gym path are the same embedded and behind `ng_run`."""

import asyncio
import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_rl.environments.nemo_gym import NemoGym, NemoGymBatch
from nemo_rl.experience.integrity import advantage_audit
from nemo_rl.experience.interfaces import GroupIntegrity, PromptGroupRecord
from nemo_rl.experience.message_log import flat_logprobs, flat_token_ids, token_loss_mask
from nemo_rl.experience.rollout_manager import RolloutManager
from nemo_rl.models.weights import export_gguf, load_policy
from tests.support.commands import ROOT, NgRun
from tests.support.toy_tokenizer import ToyTokenizer
from tests.support.vllm_stand_in import VLLMStandIn

pytestmark = pytest.mark.torch

N = 2
CONTEXT = 2048
AGENT = "calculator_simple_agent"
CALCULATOR = "resources_servers/calculator/configs/calculator.yaml"
LOCAL_MODEL = "responses_api_models/local_model/configs/local_model_for_rl.yaml"
WEIGHT_VERSION = 7
SETTINGS = {f"{AGENT}.responses_api_agents.simple_agent.max_steps": 2}
IN_TURN = {"max_concurrent_rows": 1}
"""Log-probabilities depend slightly on what the engine has computed before, and so on the order of rows."""


def prompt() -> Any:
    """A question."""
    lines = (ROOT / "resources_servers/calculator/data/few_shot.jsonl").read_text().splitlines()
    row = json.loads(lines[0])
    params = row["responses_create_params"]
    params |= {"input": params["input"][-1:], "max_output_tokens": 128}
    return {"message_log": [], "extra_env_info": {**row, "agent_ref": {"name": AGENT}}, "idx": 3}


def calling() -> Any:
    """A prompt for which every turn has to be a short call of the calculator."""
    sample = prompt()
    params = sample["extra_env_info"]["responses_create_params"]
    parameters = params["tools"][0]["parameters"]
    parameters["properties"]["expression"]["pattern"] = "^[0-9+*]{1,8}$"
    parameters["additionalProperties"] = False
    params |= {"tool_choice": "required", "max_output_tokens": 40}
    return sample


def manager(gym: Any, n: int = N, **options: Any) -> RolloutManager:
    config: Any = {
        "backend": "gym",
        "max_new_tokens": 256,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": None,
        "stop_token_ids": None,
        "stop_strings": None,
    }
    tokenizer: Any = ToyTokenizer()  # its texts are only displayed
    return RolloutManager(
        tokenizer, {"nemo_gym": gym}, n, CONTEXT, generation_config=config, use_nemo_gym=True, **options
    )


def played(gym: Any, sample: Any, weights: Path | None = None, **options: Any) -> PromptGroupRecord:
    async def play() -> PromptGroupRecord:
        async with gym:
            if weights is not None:
                await gym.load_weights("policy_model", weights, WEIGHT_VERSION)
            return await manager(gym, **options).run_rollout(sample)

    return asyncio.run(play())


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights as a trainer exports them: F16."""
    exported = tmp_path_factory.mktemp("weights") / "policy.gguf"
    export_gguf(load_policy(), exported)
    return exported


@pytest.fixture(scope="module")
def embedded(weights: Path) -> PromptGroupRecord:
    """The group of a seeded run, embedded in this process."""
    return played(NemoGymBatch([CALCULATOR, LOCAL_MODEL], SETTINGS, **IN_TURN), calling(), weights, seed=11)


def test_every_member_has_the_tokens_of_each_turn(embedded: PromptGroupRecord) -> None:
    assert len(embedded.completions) == N
    for completion in embedded.completions:
        log = completion.message_log
        assert [message["role"] for message in log] == ["user", "assistant"] * 2
        mask, log_probs = token_loss_mask(log), flat_logprobs(log)
        assert int(mask.sum()) == len(log[1]["token_ids"]) + len(log[3]["token_ids"]) > 0
        assert bool((log_probs[mask == 1] <= 0).all()) and bool((log_probs[mask == 0] == 0).all())
        assert completion.env_extras is not None
        response = completion.env_extras["response"]
        assert response["output"][0]["type"] == "function_call"
        assert response["metadata"]["weight_version"] == str(WEIGHT_VERSION)
        assert completion.reward in (0.0, 1.0)
    starts = {tuple(completion.message_log[0]["token_ids"].tolist()) for completion in embedded.completions}
    assert starts == {tuple(embedded.prompt[0]["token_ids"].tolist())}
    assert embedded.rollout_metrics["turns_per_sample/mean"] == 2
    assert embedded.rollout_metrics[f"{AGENT}/used_calculator/mean"] == 1.0
    share = embedded.rollout_metrics["timing/rollout/postprocess_results_pct"]
    assert 0 < share < 100


def test_members_have_different_seeds(embedded: PromptGroupRecord) -> None:
    sampled = {tuple(flat_token_ids(completion.message_log).tolist()) for completion in embedded.completions}
    assert len(sampled) > 1


def test_group_behind_ng_run_equals_the_embedded_group(embedded: PromptGroupRecord, weights: Path) -> None:
    with NgRun([CALCULATOR, LOCAL_MODEL], SETTINGS) as run:
        over_http = played(
            NemoGym(head_server=f"127.0.0.1:{run.head.port}", **IN_TURN), calling(), weights, seed=11
        )
    assert len(over_http.completions) == N
    for here, there in zip(embedded.completions, over_http.completions, strict=True):
        assert [message["role"] for message in here.message_log] == [
            message["role"] for message in there.message_log
        ]
        for of in (flat_token_ids, token_loss_mask):
            assert torch.equal(of(here.message_log), of(there.message_log))
        torch.testing.assert_close(
            flat_logprobs(here.message_log), flat_logprobs(there.message_log), rtol=0, atol=1e-6
        )
        assert (here.reward, here.truncated) == (there.reward, there.truncated)
        assert here.env_extras is not None and there.env_extras is not None
        assert here.env_extras.keys() == there.env_extras.keys()
    assert embedded.rollout_metrics.keys() == over_http.rollout_metrics.keys()


CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "14+28"}}</tool_call>'
VLLM = "responses_api_models/vllm_model/configs"


def second_one_calls() -> Any:
    """A policy whose second rollout uses the calculator; the others answer without a tool."""
    calls = count()

    def write(text: str) -> str:
        return "It is 42." if "tool_call" in text or next(calls) != 1 else CALL

    return write


def stand_in(vllm: VLLMStandIn, config: str) -> NemoGym:
    settings = {
        "policy_base_url": vllm.base_url,
        "policy_api_key": "none",
        "policy_model_name": "toy",
    }
    if config == REPLAYING:
        settings["policy_eos_token"] = "<|im_end|>"
    return NemoGym([CALCULATOR, f"{VLLM}/{config}"], settings, **IN_TURN)


RETOKENISING = "vllm_model_for_training.yaml"
REPLAYING = "vllm_model_for_training_stock.yaml"


def test_policy_that_tokenises_history_again_fails_the_group() -> None:
    with (
        VLLMStandIn(second_one_calls()) as vllm,
        pytest.raises(AssertionError, match="non-contiguous history"),
    ):
        played(stand_in(vllm, RETOKENISING), prompt())


def test_members_with_contiguous_tokens_are_kept_without_the_others() -> None:
    with VLLMStandIn(second_one_calls()) as vllm:
        record = played(stand_in(vllm, RETOKENISING), prompt(), n=3, integrity=GroupIntegrity("mask"))
    assert [completion.reward for completion in record.completions] == [1.0, 0.0, 1.0]
    assert list(record.failures) == [1]
    assert record.failures[1].startswith("AssertionError: non-contiguous history")
    assert advantage_audit(record).baseline == 1.0


def test_policy_that_replays_token_ids_keeps_the_whole_group() -> None:
    with VLLMStandIn(second_one_calls()) as vllm:
        record = played(stand_in(vllm, REPLAYING), prompt(), n=3)
    assert [len(completion.message_log) for completion in record.completions] == [2, 4, 2]
    assert [completion.reward for completion in record.completions] == [1.0, 1.0, 1.0]
