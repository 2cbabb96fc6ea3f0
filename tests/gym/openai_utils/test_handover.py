"""What is handed over is what reading its JSON would give."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import ValidationError

from nemo_gym.codec import decode_json
from nemo_gym.openai_utils import NeMoGymChatCompletion, NeMoGymResponse
from nemo_gym.openai_utils.handover import Answer, emptied
from tests.gym.openai_utils.sdk_strategies import values_of

examples = settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
INF = float("inf")
NAN = float("nan")


def both(model: type[Answer], data: dict[str, Any]) -> list[str]:
    """The answer handed over, and read from its JSON: as text, which shows the order of keys and NaN."""
    read = decode_json(model.model_validate(data).model_dump_json())
    return [json.dumps(emptied(model.model_validate(data))), json.dumps(read)]


@examples
@given(values_of(Response))
def test_any_response_is_handed_over_as_its_json_says(data: dict[str, Any]) -> None:
    handed, read = both(NeMoGymResponse, data)
    assert handed == read


@examples
@given(values_of(ChatCompletion))
def test_any_chat_completion_is_handed_over_as_its_json_says(data: dict[str, Any]) -> None:
    handed, read = both(NeMoGymChatCompletion, data)
    assert handed == read


def tokens(log_probs: list[Any]) -> dict[str, Any]:
    ids = list(range(len(log_probs)))
    return {"prompt_token_ids": [1], "generation_token_ids": ids, "generation_log_probs": log_probs, "x": NAN}


@examples
@given(st.lists(st.one_of(st.floats(), st.none(), st.integers(-9, 9))))
def test_tokens_are_handed_over_as_their_json_says(log_probs: list[Any]) -> None:
    message = {"type": "message", "role": "assistant", "content": [], **tokens(log_probs)}
    call = {"type": "function_call", "name": "f", "arguments": "", "call_id": "c", **tokens(log_probs)}
    response = {"output": [message, {"type": "other", "y": [INF]}, call], "created_at": NAN, "z": {"a": NAN}}
    handed, read = both(NeMoGymResponse, response)
    assert handed == read
    choice = {"message": {"role": "assistant", "content": "", **tokens(log_probs)}}
    handed, read = both(NeMoGymChatCompletion, {"choices": [choice], "created": INF})
    assert handed == read


def test_nothing_is_shared_with_what_the_answer_was_made_of() -> None:
    ids, vendor = [3], {"list": [1]}
    data = {"output": [{"type": "message", "content": [], **tokens([-0.5])}], "vendor": vendor}
    data["output"][0]["generation_token_ids"] = ids  # type: ignore[index]
    handed = emptied(NeMoGymResponse.model_validate(data))
    handed["output"][0]["generation_token_ids"].append(4)
    handed["vendor"]["list"].append(2)
    assert (ids, vendor) == ([3], {"list": [1]})


@pytest.mark.parametrize("bad", [["x"], [None], [1.5], [[1]], "12", {"a": 1}, 7])
def test_token_ids_that_are_no_whole_numbers_are_refused(bad: Any) -> None:
    item = {"type": "message", "content": [], **tokens([-0.5]), "generation_token_ids": bad}
    with pytest.raises(ValidationError, match="generation_token_ids"):
        NeMoGymResponse.model_validate({"output": [item]})


@pytest.mark.parametrize("bad", [["x"], [[1.0]], [None, "x"], "0.5", 7])
def test_log_probabilities_that_are_no_numbers_are_refused(bad: Any) -> None:
    item = {"type": "message", "content": [], **tokens([-0.5]), "generation_log_probs": bad}
    with pytest.raises(ValidationError, match="generation_log_probs"):
        NeMoGymResponse.model_validate({"output": [item]})
