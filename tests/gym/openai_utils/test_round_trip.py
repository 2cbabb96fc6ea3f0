"""The wire models keep everything that the types of OpenAI's library can express."""

import json
from typing import Any, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam, ChatCompletionToolUnionParam
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses import (
    Response,
    ResponseInputItem,
    ResponseInputItemParam,
    ResponseOutputItem,
    ToolParam,
)
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import BaseModel, TypeAdapter

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
)
from tests.gym.openai_utils.sdk_strategies import lost, members_of, same_json, values_of

_SETTINGS: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}
few = settings(max_examples=15, **_SETTINGS)
many = settings(max_examples=150, **_SETTINGS)


def name_of(annotation: Any) -> str:
    return str(annotation.__name__)


def assert_kept(model: type[BaseModel], data: dict[str, Any]) -> None:
    parsed = model.model_validate(data)
    assert same_json(parsed.model_dump(exclude_unset=True), data)
    assert same_json(json.loads(parsed.model_dump_json(exclude_unset=True)), data)
    assert lost(data, parsed.model_dump(mode="json")) == []
    assert lost(data, json.loads(parsed.model_dump_json())) == []
    from_json = model.model_validate_json(json.dumps(data))
    assert same_json(from_json.model_dump(mode="json", exclude_unset=True), data)


@given(values_of(Response))
@many
def test_any_sdk_response_survives_a_round_trip(data: dict[str, Any]) -> None:
    assert_kept(NeMoGymResponse, data)


@given(values_of(Response))
@few
def test_a_response_written_by_the_sdk_survives_a_round_trip(data: dict[str, Any]) -> None:
    written = Response.model_validate(data).model_dump(mode="json", by_alias=True)
    assert_kept(NeMoGymResponse, written)


@pytest.mark.parametrize("item_type", members_of(ResponseOutputItem), ids=name_of)
@given(st.data())
@few
def test_every_item_of_an_output_survives_a_round_trip(item_type: Any, data: st.DataObject) -> None:
    item = data.draw(values_of(item_type))
    TypeAdapter(item_type).validate_python(item)
    assert_kept(NeMoGymResponse, {"output": [item]})


@given(values_of(ResponseCreateParamsNonStreaming))
@many
def test_any_sdk_responses_request_survives_a_round_trip(data: dict[str, Any]) -> None:
    assert_kept(NeMoGymResponseCreateParamsNonStreaming, {"input": "required here", **data})


@pytest.mark.parametrize("item_type", members_of(ResponseInputItemParam), ids=name_of)
@given(st.data())
@few
def test_every_item_of_an_input_survives_a_round_trip(item_type: Any, data: st.DataObject) -> None:
    item = data.draw(values_of(item_type))
    assert_kept(NeMoGymResponseCreateParamsNonStreaming, {"input": [item]})


@pytest.mark.parametrize("item_type", members_of(ResponseInputItem), ids=name_of)
@given(st.data())
@few
def test_every_item_of_the_instructions_survives_a_round_trip(item_type: Any, data: st.DataObject) -> None:
    item = data.draw(values_of(item_type))
    assert_kept(NeMoGymResponse, {"output": [], "instructions": [item]})


@pytest.mark.parametrize("tool_type", members_of(ToolParam), ids=name_of)
@given(st.data())
@few
def test_every_tool_of_responses_survives_a_round_trip(tool_type: Any, data: st.DataObject) -> None:
    tool = data.draw(values_of(tool_type))
    assert_kept(NeMoGymResponseCreateParamsNonStreaming, {"input": "", "tools": [tool]})
    assert_kept(NeMoGymResponse, {"output": [], "tools": [tool]})


@given(values_of(ChatCompletion))
@many
def test_any_sdk_chat_completion_survives_a_round_trip(data: dict[str, Any]) -> None:
    assert_kept(NeMoGymChatCompletion, data)
    written = ChatCompletion.model_validate(data).model_dump(mode="json", by_alias=True)
    assert_kept(NeMoGymChatCompletion, written)


@given(values_of(CompletionCreateParamsNonStreaming))
@many
def test_any_sdk_chat_request_survives_a_round_trip(data: dict[str, Any]) -> None:
    assert_kept(NeMoGymChatCompletionCreateParamsNonStreaming, data)


@pytest.mark.parametrize("message_type", members_of(ChatCompletionMessageParam), ids=name_of)
@given(st.data())
@few
def test_every_chat_message_survives_a_round_trip(message_type: Any, data: st.DataObject) -> None:
    message = data.draw(values_of(message_type))
    assert_kept(NeMoGymChatCompletionCreateParamsNonStreaming, {"messages": [message]})


@pytest.mark.parametrize("tool_type", members_of(ChatCompletionToolUnionParam), ids=name_of)
@given(st.data())
@few
def test_every_tool_of_chat_survives_a_round_trip(tool_type: Any, data: st.DataObject) -> None:
    tool = data.draw(values_of(tool_type))
    assert_kept(NeMoGymChatCompletionCreateParamsNonStreaming, {"messages": [], "tools": [tool]})


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (NeMoGymResponse, Response.model_fields),
        (NeMoGymResponseCreateParamsNonStreaming, get_type_hints(ResponseCreateParamsNonStreaming)),
        (NeMoGymChatCompletion, ChatCompletion.model_fields),
        (NeMoGymChatCompletionCreateParamsNonStreaming, get_type_hints(CompletionCreateParamsNonStreaming)),
    ],
    ids=lambda value: getattr(value, "__name__", "sdk"),
)
def test_every_field_of_the_sdk_is_an_attribute(ours: type[BaseModel], theirs: dict[str, Any]) -> None:
    empty = ours.model_validate({"output": [], "input": [], "choices": [], "messages": []})
    assert [name for name in theirs if not hasattr(empty, name)] == []


def test_a_missing_field_is_none_and_is_not_serialized() -> None:
    call = NeMoGymResponseFunctionToolCall(arguments="{}", call_id="c", name="f")
    assert call.status is None
    assert "status" not in call.model_dump()
    call.status = "completed"
    assert call.model_dump()["status"] == "completed"
    assert not hasattr(call, "statu")
