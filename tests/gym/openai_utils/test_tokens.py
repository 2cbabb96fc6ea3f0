"""Token fields on items: what JSON cannot say is read back as what it was."""

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


def test_null_among_log_probabilities_is_nan_as_it_was_before_json() -> None:
    response = NeMoGymResponse.model_validate({"output": [{**MESSAGE, "generation_log_probs": [-1.0, None]}]})
    (item,) = response.output
    assert isinstance(item, NeMoGymResponseOutputMessageForTraining)
    assert item.generation_log_probs[0] == -1.0
    assert math.isnan(item.generation_log_probs[1])
    assert b'"generation_log_probs":[-1.0,null]' in response.model_dump_json().encode()


def test_null_in_a_history_of_chat_messages_is_nan_too() -> None:
    message = {"role": "assistant", "content": "", **MESSAGE, "generation_log_probs": [None, -2.0]}
    request = NeMoGymChatCompletionCreateParamsNonStreaming.model_validate({"messages": [message]})
    kept: Any = request.messages[0]
    assert math.isnan(kept["generation_log_probs"][0])


@pytest.mark.parametrize("log_probs", [["x"], [[]], "x", [None, "x"]])
def test_what_is_no_number_is_refused(log_probs: object) -> None:
    with pytest.raises(ValidationError, match="generation_log_probs"):
        NeMoGymResponse.model_validate({"output": [{**MESSAGE, "generation_log_probs": log_probs}]})
