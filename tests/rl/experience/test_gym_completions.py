"""Results of the Gym handle become completions: tokens, turns, rewards, flags."""

import asyncio
import copy
from typing import Any

import pytest
import torch

from nemo_rl.environments.gym_results import gym_result
from nemo_rl.experience.failures import RolloutDataFailure
from nemo_rl.experience.integrity import is_flagged
from nemo_rl.experience.message_log import token_loss_mask
from tests.support.gym_handles import Batch, Handle, implementation, managed, play_group, result, sample
from tests.support.toy_tokenizer import ToyTokenizer

pytestmark = pytest.mark.torch


def two_turn_group(max_seq_len: int) -> Any:
    """A group whose rollouts have two turns and six tokens."""
    tokens = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
    items = [
        {"type": "function_call", **dict(zip(tokens, ([5, 6], [7, 9], [-0.1, -0.2]), strict=True))},
        {"type": "message", **dict(zip(tokens, ([5, 6, 7, 9, 8], [4], [-0.3]), strict=True))},
    ]
    rollout = {"responses_create_params": {"input": []}, "response": {"output": items}, "reward": 1}
    return play_group(
        Batch(lambda row: asyncio.sleep(0, gym_result(rollout, ToyTokenizer()))), max_seq_len=max_seq_len
    )


@pytest.mark.parametrize(
    ("max_seq_len", "truncated", "overflow_tokens"), [(6, True, 0), (7, False, 0), (5, False, 1)]
)
def test_sequence_that_fills_the_context_exactly_counts_as_truncated(
    max_seq_len: int, truncated: bool, overflow_tokens: int
) -> None:
    completion = two_turn_group(max_seq_len).completions[0]
    assert (completion.truncated, completion.overflow_tokens) == (truncated, overflow_tokens)


def test_turns_and_tokens_are_counted_over_all_model_calls() -> None:
    record = two_turn_group(16)
    assert [message["token_ids"].tolist() for message in record.prompt] == [[5, 6]]
    metrics = record.rollout_metrics
    assert metrics["turns_per_sample/mean"] == 2
    assert metrics["gen_tokens_per_sample/mean"] == metrics["mean_gen_tokens_per_sample"] == 3
    assert metrics["total_tokens_per_sample/mean"] == metrics["sequence_tokens_per_sample/mean"] == 6
    assert token_loss_mask(record.completions[0].message_log).tolist() == [0, 0, 1, 1, 0, 1]


def test_result_may_have_lists_and_tensors_of_any_type() -> None:
    log = [
        {"role": "user", "content": "", "token_ids": [11, 12]},
        {"role": "assistant", "content": "", "token_ids": torch.tensor([21.0]), "generation_logprobs": [-1]},
        {"role": "user", "content": "", "token_ids": []},
    ]
    raw = {"message_log": log, "full_result": {"reward": 1}}
    completion = implementation(Handle())._result_to_completion(raw)
    assert [message["token_ids"].dtype for message in completion.message_log] == [torch.int64] * 3
    assert completion.message_log[1]["generation_logprobs"].dtype == torch.float32
    assert isinstance(completion.reward, float)
    assert completion.env_extras is raw["full_result"]
    assert log[0]["token_ids"] == [11, 12]


def test_tensors_of_the_right_type_are_not_copied() -> None:
    raw = result()
    completion = implementation(Handle())._result_to_completion(raw)
    again = implementation(Handle())._result_to_completion({**raw, "message_log": completion.message_log})
    for before, after in zip(raw["message_log"], again.message_log, strict=True):
        assert before["token_ids"].data_ptr() == after["token_ids"].data_ptr()


def test_missing_reward_is_a_key_error_and_nan_reward_a_data_failure() -> None:
    impl = implementation(Handle())
    without = result()
    del without["full_result"]["reward"]
    with pytest.raises(KeyError, match="reward"):
        impl._result_to_completion(without)
    with pytest.raises(RolloutDataFailure, match="the reward nan"):
        impl._result_to_completion(result(reward=float("nan")))


@pytest.mark.parametrize(
    ("reward", "components"),
    [
        (1.0, {"a": 0.25, "b": 0.75}),
        (1.0, {"a": True}),
        (1.0, {"a": 0.1, "b": 0.9000001}),
        (1.0, None),
        (float(torch.tensor(1000.1) + torch.tensor(0.7)), {"a": 1000.1, "b": 0.7}),
    ],
)
def test_reward_is_the_sum_of_its_components_up_to_rounding(reward: float, components: Any) -> None:
    completion = implementation(Handle())._result_to_completion(result(reward, reward_components=components))
    assert completion.reward == reward


@pytest.mark.parametrize(
    ("reward", "components"),
    [
        (1.0, {"a": 0.25}),
        (1.0, {}),
        (1.0, {"a": 1.0, "b": "0"}),
        (1.0, {"a": float("nan")}),
        (1000.8, {"a": 1000.1, "b": 0.71}),
    ],
)
def test_components_that_do_not_add_up_are_a_data_failure(reward: float, components: Any) -> None:
    with pytest.raises(RolloutDataFailure, match="do not add up"):
        implementation(Handle())._result_to_completion(result(reward, reward_components=components))


FLAGGED = {"mask_sample": True, "instance_config": {"mask_sample": True, "repo": "x"}}


def test_flags_of_the_environment_are_kept_by_default() -> None:
    completion = implementation(Handle())._result_to_completion(result(**copy.deepcopy(FLAGGED)))
    assert is_flagged(completion.env_extras)


def test_only_the_flags_are_removed_if_masking_is_off() -> None:
    raw = result(**copy.deepcopy(FLAGGED))
    completion = implementation(Handle(), mask_env_flagged_samples=False)._result_to_completion(raw)
    assert completion.env_extras == {"reward": 1.0, "instance_config": {"repo": "x"}}
    assert completion.env_extras is raw["full_result"]


@pytest.mark.parametrize("is_honoured", [True, False])
def test_manager_option_decides_whether_flags_are_kept(is_honoured: bool) -> None:
    handle = Batch(lambda row: asyncio.sleep(0, result(**copy.deepcopy(FLAGGED))))
    manager = managed(handle, mask_env_flagged_samples=is_honoured)
    record = asyncio.run(manager.run_rollout(sample()))
    assert [is_flagged(completion.env_extras) for completion in record.completions] == [is_honoured] * 2
