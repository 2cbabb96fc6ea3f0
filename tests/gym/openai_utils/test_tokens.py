"""Token fields on items: NaN, which JSON cannot represent, survives as null."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseOutputMessageForTraining,
)

MESSAGE = {
    "type": "message",
    "role": "assistant",
    "content": [],
    "prompt_token_ids": [1],
    "generation_token_ids": [2, 3],
}


def test_null_log_probability_is_read_as_nan() -> None:
    response = NeMoGymResponse.model_validate({"output": [{**MESSAGE, "generation_log_probs": [-1.0, None]}]})
    (item,) = response.output
    assert isinstance(item, NeMoGymResponseOutputMessageForTraining)
    assert item.generation_log_probs[0] == -1.0
    assert math.isnan(item.generation_log_probs[1])
    assert b'"generation_log_probs":[-1.0,null]' in response.model_dump_json().encode()


def test_null_log_probability_in_a_chat_history_is_read_as_nan() -> None:
    message = {"role": "assistant", "content": "", **MESSAGE, "generation_log_probs": [None, -2.0]}
    request = NeMoGymChatCompletionCreateParamsNonStreaming.model_validate({"messages": [message]})
    kept: Any = request.messages[0]
    assert math.isnan(kept["generation_log_probs"][0])


@pytest.mark.parametrize("log_probs", [["x"], [[]], "x", [None, "x"]])
def test_log_probability_that_is_not_a_number_is_rejected(log_probs: object) -> None:
    with pytest.raises(ValidationError, match="generation_log_probs"):
        NeMoGymResponse.model_validate({"output": [{**MESSAGE, "generation_log_probs": log_probs}]})
