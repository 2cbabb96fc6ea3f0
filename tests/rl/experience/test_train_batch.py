"""Groups as one padded batch."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from nemo_rl.experience.interfaces import Completion, PromptGroupRecord
from nemo_rl.experience.train_batch import record_to_train_batch, records_to_train_batch

pytestmark = pytest.mark.torch

PAD = {"token_ids": 99}


def message(role: str, token_ids: Sequence[int], logprobs: Sequence[float] | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": "", "token_ids": torch.tensor(token_ids).long()}
    if logprobs is not None:
        message["generation_logprobs"] = torch.tensor(logprobs, dtype=torch.float32)
    return message


PROMPT = [message("system", [5]), message("user", [6, 7])]


def completion(*messages: dict[str, Any], reward: float = 0.0, **more: Any) -> Completion:
    given = {"env_extras": None, "truncated": False, **more}
    return Completion(message_log=[*PROMPT, *messages], reward=reward, **given)


def group(*completions: Completion, prompt_idx: int = 3) -> PromptGroupRecord:
    return PromptGroupRecord(prompt_idx, PROMPT, None, {"task_name": "toy"}, list(completions), {})


TWO_TURNS = completion(
    message("assistant", [21, 22], [-0.5, -0.25]),
    message("environment", [31]),
    message("assistant", [23], [-1.0]),
    message("environment", [32]),
    reward=1.0,
)
ONE_TURN = completion(message("assistant", [24], [-2.0]), message("environment", []), reward=0.25)


def test_a_group_becomes_rows_padded_on_the_right() -> None:
    batch = record_to_train_batch(group(TWO_TURNS, ONE_TURN), PAD)
    assert batch["input_ids"].tolist() == [
        [5, 6, 7, 21, 22, 31, 23, 32],
        [5, 6, 7, 24, 99, 99, 99, 99],
    ]
    assert batch["input_lengths"].tolist() == [8, 4]
    assert batch["token_mask"].tolist() == [[0, 0, 0, 1, 1, 0, 1, 0], [0, 0, 0, 1, 0, 0, 0, 0]]
    assert batch["generation_logprobs"].tolist() == [
        [0, 0, 0, -0.5, -0.25, 0, -1.0, 0],
        [0, 0, 0, -2.0, 0, 0, 0, 0],
    ]
    assert batch["prompt_ids_for_adv"].tolist() == [[5, 6, 7], [5, 6, 7]]
    assert batch["total_reward"].tolist() == [1.0, 0.25]
    assert batch["sample_mask"].tolist() == [1.0, 1.0]


def test_tensors_have_the_published_types() -> None:
    batch = record_to_train_batch(group(TWO_TURNS, ONE_TURN), PAD)
    assert {key: value.dtype for key, value in batch.items()} == {
        "input_ids": torch.int64,
        "input_lengths": torch.int32,
        "generation_logprobs": torch.float32,
        "token_mask": torch.int64,
        "sample_mask": torch.float32,
        "prompt_ids_for_adv": torch.int64,
        "total_reward": torch.float32,
    }


@pytest.mark.parametrize(("pads", "pad"), [({"token_ids": 7}, 7), ({"input_ids": 8}, 8), ({}, 0), (None, 0)])
def test_padding_token_may_have_either_name(pads: dict[str, int] | None, pad: int) -> None:
    batch = record_to_train_batch(group(TWO_TURNS, ONE_TURN), pads)
    assert batch["input_ids"][1, 4:].tolist() == [pad] * 4


def test_assistant_turns_of_the_prompt_are_not_trained_on() -> None:
    turns = [message("user", [6]), message("assistant", [7]), message("user", [8])]
    record = group(Completion([*turns, message("assistant", [21, 2], [-0.5, -0.5])], None, False, 0.0))
    assert record_to_train_batch(record)["token_mask"].tolist() == [[0, 0, 0, 1, 1]]


@pytest.mark.parametrize("flag", [{"mask_sample": True}, {"instance_config": {"mask_sample": True}}])
def test_flagged_and_failed_members_have_no_weight(flag: dict[str, Any]) -> None:
    flagged = completion(message("assistant", [24], [-2.0]), reward=1.0, env_extras=flag)
    failed = completion(failure="RolloutTimeout: too long")
    batch = record_to_train_batch(group(flagged, TWO_TURNS, failed), PAD)
    assert batch["sample_mask"].tolist() == [0.0, 1.0, 0.0]
    assert batch["token_mask"][0].sum() == 1, "sampled tokens are marked even if they have no weight"
    assert batch["input_lengths"].tolist() == [4, 8, 3]
    assert batch["token_mask"][2].sum() == 0


def test_groups_are_joined_in_order_and_padded_to_the_longest() -> None:
    longer = [*PROMPT, message("user", [8, 9])]
    other = PromptGroupRecord(
        4, longer, None, {}, [Completion([*longer, message("assistant", [25], [-3.0])], None, False, 0.5)], {}
    )
    batch = records_to_train_batch([group(TWO_TURNS, ONE_TURN), other], PAD)
    assert batch.size == 3
    assert batch["input_ids"][2].tolist() == [5, 6, 7, 8, 9, 25, 99, 99]
    assert batch["prompt_ids_for_adv"].tolist() == [[5, 6, 7, 99, 99], [5, 6, 7, 99, 99], [5, 6, 7, 8, 9]]
    assert batch["total_reward"].tolist() == [1.0, 0.25, 0.5]
    assert batch["generation_logprobs"][2].tolist() == [0, 0, 0, 0, 0, -3.0, 0, 0]


def test_one_warning_names_all_groups_without_log_probabilities(caplog: pytest.LogCaptureFixture) -> None:
    without_logprobs = completion(message("assistant", [21, 22]))
    with caplog.at_level(logging.WARNING):
        batch = records_to_train_batch(
            [
                group(without_logprobs, without_logprobs),
                group(TWO_TURNS),
                group(without_logprobs, prompt_idx=9),
            ]
        )
    assert batch["token_mask"].sum(dim=1).tolist() == [0, 0, 3, 0]
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 3 groups cannot be trained on: the backend returned no log-probabilities, so no message has "
        "generation_logprobs (prompt_idx 3, 9)"
    ]


def test_group_with_log_probabilities_causes_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    record_to_train_batch(group(TWO_TURNS, completion(failure="gone")))
    assert not caplog.records


def test_message_without_one_log_probability_per_token_is_refused() -> None:
    with pytest.raises(ValueError, match=r"prompt_idx=3 completion 1: .*generation_logprobs"):
        record_to_train_batch(group(TWO_TURNS, completion(message("assistant", [21, 22], [-0.5]))))


def test_batch_without_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one group"):
        records_to_train_batch([])
    with pytest.raises(ValueError, match="every group a completion"):
        record_to_train_batch(group())


def test_group_that_is_not_in_a_list_is_refused() -> None:
    with pytest.raises(TypeError, match=r"not a PromptGroupRecord; pass \[record\]"):
        records_to_train_batch(group(completion()))  # type: ignore[arg-type]
