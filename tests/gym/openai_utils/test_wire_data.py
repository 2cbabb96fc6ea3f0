"""Validated data equals the JSON of the validated model, read back."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel, Field, ValidationError, model_validator

from nemo_gym.codec import decode_json
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.openai_utils.wire_data import data_validator
from tests.gym.openai_utils.sdk_strategies import values_of

examples = settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def both(model: type[BaseModel], data: dict[str, Any], *, is_request: bool = False) -> list[str]:
    """The data validated directly, and read from the JSON of the model; as text, to compare key order."""
    written = model.model_validate(data).model_dump_json(exclude_unset=is_request)
    validated = data_validator(model, with_defaults=not is_request).validate_python(data)
    return [json.dumps(validated), json.dumps(decode_json(written))]


@examples
@given(values_of(Response))
def test_any_response_is_the_same_data_as_its_json(data: dict[str, Any]) -> None:
    validated, read = both(NeMoGymResponse, data)
    assert validated == read


@examples
@given(values_of(ChatCompletion))
def test_any_chat_completion_is_the_same_data_as_its_json(data: dict[str, Any]) -> None:
    validated, read = both(NeMoGymChatCompletion, data)
    assert validated == read


@examples
@given(values_of(Response))
def test_any_responses_request_is_the_same_data_as_its_json(data: dict[str, Any]) -> None:
    kept = {
        key: data[key] for key in ("tools", "temperature", "metadata", "text") if data.get(key) is not None
    }
    request = {"input": data["output"], **kept, "vendor": {"a": [1]}, "seed": 3}
    validated, read = both(NeMoGymResponseCreateParamsNonStreaming, request, is_request=True)
    assert validated == read


@examples
@given(values_of(ChatCompletion))
def test_any_chat_request_is_the_same_data_as_its_json(data: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "hi"}, *(choice["message"] for choice in data["choices"])]
    request = {"messages": messages, "temperature": 1, "stop": ["a"], "vendor": None}
    validated, read = both(NeMoGymChatCompletionCreateParamsNonStreaming, request, is_request=True)
    assert validated == read


def tokens(log_probs: list[Any]) -> dict[str, Any]:
    ids = list(range(len(log_probs)))
    return {"prompt_token_ids": [1], "generation_token_ids": ids, "generation_log_probs": log_probs}


@examples
@given(st.lists(st.one_of(st.floats(), st.none(), st.integers(-9, 9))))
def test_tokens_are_the_same_data_as_their_json(log_probs: list[Any]) -> None:
    message = {"type": "message", "role": "assistant", "content": [], **tokens(log_probs)}
    call = {"type": "function_call", "name": "f", "arguments": "", "call_id": "c", **tokens(log_probs)}
    validated, read = both(NeMoGymResponse, {"output": [message, {"type": "other"}, call]})
    assert validated == read
    choice = {"message": {"role": "assistant", "content": "", **tokens(log_probs)}}
    validated, read = both(NeMoGymChatCompletion, {"choices": [choice]})
    assert validated == read


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"output": None},
        {"output": [3]},
        {"output": [{"type": "function_call", "name": "f"}]},
        {"output": [], "usage": {"input_tokens": "many"}},
        {"output": [], "created_at": "now"},
    ],
)
def test_data_that_the_model_rejects_is_rejected_for_the_same_reasons(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as from_model:
        NeMoGymResponse.model_validate(bad)
    with pytest.raises(ValidationError) as from_data:
        data_validator(NeMoGymResponse, with_defaults=True).validate_python(bad)

    def reasons(error: ValidationError) -> list[Any]:
        return [(one["loc"], one["msg"]) for one in error.errors()]

    assert reasons(from_data.value) == reasons(from_model.value)


@pytest.mark.parametrize("bad", [["x"], [None], [1.5], [[1]], "12", {"a": 1}, 7])
def test_token_ids_that_are_not_integers_are_rejected(bad: Any) -> None:
    item = {"type": "message", "content": [], **tokens([-0.5]), "generation_token_ids": bad}
    with pytest.raises(ValidationError, match="generation_token_ids"):
        NeMoGymResponse.model_validate({"output": [item]})


@pytest.mark.parametrize("bad", [["x"], [[1.0]], [None, "x"], "0.5", 7])
def test_log_probabilities_that_are_not_numbers_are_rejected(bad: Any) -> None:
    item = {"type": "message", "content": [], **tokens([-0.5]), "generation_log_probs": bad}
    with pytest.raises(ValidationError, match="generation_log_probs"):
        NeMoGymResponse.model_validate({"output": [item]})


class Decorated(float):
    """A float subclass, like the numbers of other libraries: JSON writers do not accept it."""

    def __add__(self, other: Any) -> Any:
        return Decorated(float(self) + other)

    __radd__ = __add__


@pytest.mark.parametrize("given", [[0, 0], [True], [Decimal("-0.5")], [Decorated(-0.5)], []])
def test_log_probabilities_of_other_types_become_floats(given: list[Any]) -> None:
    response = NeMoGymResponse.model_validate(
        {"output": [{"type": "message", "content": [], **tokens([-0.5]), "generation_log_probs": given}]}
    )
    written = json.loads(response.model_dump_json())["output"][0]["generation_log_probs"]
    assert [(type(one), one) for one in written] == [(float, float(one)) for one in given]


class Checked(BaseModel):
    a: int = 0

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:
        return data


class Renamed(BaseModel):
    a: int = Field(default=0, alias="b")


@pytest.mark.fast_path
@pytest.mark.parametrize("model", [Checked, Renamed])
def test_model_with_its_own_validation_or_serialization_is_rejected(model: type[BaseModel]) -> None:
    with pytest.raises(TypeError, match=f"{model.__name__}.*cannot be validated to plain data"):
        data_validator(model, with_defaults=True)
