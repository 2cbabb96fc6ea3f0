"""The Responses models with data from other endpoints, unknown types, tokens, and malformed data."""

import copy
import pickle
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymEasyInputMessageForTraining,
    NeMoGymFunctionCallOutput,
    NeMoGymMessage,
    NeMoGymMessageForTraining,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseInput,
    NeMoGymResponseInputItem,
    NeMoGymResponseInputText,
    NeMoGymResponseItem,
    NeMoGymResponseOutputItem,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseOutputRefusal,
    NeMoGymResponseOutputText,
    NeMoGymResponsePart,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseReasoningItemForTraining,
    NeMoGymSummary,
)

TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
OUTPUT_TEXT = {"type": "output_text", "text": "hi", "annotations": []}
INPUT_TEXT = {"type": "input_text", "text": "hi"}


def input_item(item: object) -> BaseModel:
    parsed = NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": [item]})
    assert isinstance(parsed.input, list)
    return parsed.input[0]


def output_item(item: object) -> BaseModel:
    return NeMoGymResponse.model_validate({"output": [item]}).output[0]


def errors_of(model: type[BaseModel], data: object) -> list[tuple[tuple[int | str, ...], str]]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(data)
    return [(error["loc"], error["msg"]) for error in caught.value.errors()]


def a_message(text: str = "hi") -> NeMoGymResponseOutputMessage:
    return NeMoGymResponseOutputMessage(
        id="m",
        content=[NeMoGymResponseOutputText(annotations=[], text=text, type="output_text")],
        role="assistant",
        status="completed",
        type="message",
    )


def a_response(*output: BaseModel) -> NeMoGymResponse:
    return NeMoGymResponse.model_validate(
        {
            "id": "r",
            "created_at": 0,
            "model": "m",
            "object": "response",
            "output": list(output),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
    )


@pytest.mark.parametrize(
    "response",
    [
        {"output": []},
        {
            "output": [
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
            ]
        },
        {
            "output": [
                {"type": "message", "content": [{"type": "output_text", "text": "x", "annotations": None}]}
            ]
        },
        {"output": [{"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}]},
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1700000000,
            "model": "Qwen/Qwen3-8B",
            "status": "completed",
            "output": [
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}], "summary": []},
                {"type": "reasoning", "encrypted_content": None},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": None},
            ],
            "usage": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
            "kv_transfer_params": None,
            "input_messages": [{"role": "user"}],
            "service_tier": "a tier of their own",
            "tools": None,
        },
        {
            "output": [],
            "created_at": 1700000000.25,
            "status": "of their own",
            "error": {"code": 500, "message": "boom", "trace": []},
            "incomplete_details": {"reason": "preempted"},
            "usage": {
                "input_tokens": 3,
                "output_tokens": 4,
                "total_tokens": 7,
                "input_tokens_details": None,
                "output_tokens_details": {"reasoning_tokens": None, "tool_output_tokens": 0},
            },
        },
    ],
)
def test_responses_without_openai_specific_fields_survive_a_round_trip(response: dict[str, Any]) -> None:
    assert NeMoGymResponse.model_validate(response).model_dump(exclude_unset=True) == response


def test_missing_fields_of_a_response_have_defaults() -> None:
    response = NeMoGymResponse.model_validate({"output": [], "usage": {"input_tokens": 3}})
    assert (response.object, response.tool_choice, response.tools) == ("response", "auto", [])
    assert response.parallel_tool_calls is True
    assert response.usage is not None and response.usage.total_tokens == 0
    assert response.usage.input_tokens_details is not None
    assert response.usage.input_tokens_details.cached_tokens == 0


def test_objects_in_a_response_are_read_by_attribute() -> None:
    response = NeMoGymResponse.model_validate(
        {
            "output": [],
            "incomplete_details": {"reason": "max_output_tokens"},
            "reasoning": {"effort": "low"},
            "tools": [{"type": "function", "name": "f"}],
            "tool_choice": {"type": "function", "name": "f"},
        }
    )
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.reasoning is not None and response.reasoning.effort == "low"
    assert response.tools is not None and response.tools[0].name == "f"
    assert response.tool_choice is not None
    assert response.tool_choice.name == "f"


def test_output_text_joins_the_text_of_all_output_messages() -> None:
    refusal = NeMoGymResponseOutputMessage(content=[NeMoGymResponseOutputRefusal(refusal="no")])
    question = NeMoGymEasyInputMessage(role="user", content="not this")
    assert a_response(a_message("a"), refusal, question, a_message("b")).output_text == "ab"
    assert a_response().output_text == ""


def test_models_are_built_by_keyword_with_only_the_required_fields() -> None:
    response = NeMoGymResponse(
        id="r",
        created_at=0,
        model="m",
        object="response",
        output=[
            NeMoGymResponseReasoningItem(id="rs", summary=[NeMoGymSummary(text="s", type="summary_text")]),
            NeMoGymResponseFunctionToolCall(arguments="{}", call_id="c", name="f", type="function_call"),
            NeMoGymFunctionCallOutput(call_id="c", output="o", type="function_call_output"),
            NeMoGymFunctionCallOutput(call_id="c", output=[NeMoGymResponseInputText(text="o")]),
        ],
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )
    assert [item.type for item in response.output] == [
        "reasoning",
        "function_call",
        "function_call_output",
        "function_call_output",
    ]
    assert NeMoGymResponse.model_validate(response.model_dump()) == response


def test_seed_and_unknown_parameters_of_a_request_are_kept() -> None:
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": "x", "seed": 7, "top_k": 20})
    assert params.seed == 7
    assert params.model_dump(exclude_unset=True) == {"input": "x", "seed": 7, "top_k": 20}


def test_tools_of_a_request_are_dicts_that_keep_unknown_fields() -> None:
    tools = [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "async": True, "x": [1]},
        {"type": "web_search", "filters": {"allowed_domains": []}},
    ]
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": "x", "tools": tools})
    assert params.tools == tools


@pytest.mark.parametrize(
    ("item", "model"),
    [
        ({"role": "user", "content": "x"}, NeMoGymEasyInputMessage),
        ({"role": "user", "content": "x", "type": None, "status": None}, NeMoGymEasyInputMessage),
        ({"role": "user", "content": [INPUT_TEXT], "type": "message"}, NeMoGymEasyInputMessage),
        ({"role": "assistant", "content": "x", "id": "m"}, NeMoGymEasyInputMessage),
        ({"role": "assistant", "content": [INPUT_TEXT]}, NeMoGymEasyInputMessage),
        ({"role": "user", "content": [INPUT_TEXT], "status": "completed"}, NeMoGymMessage),
        ({"role": "assistant", "content": [OUTPUT_TEXT]}, NeMoGymResponseOutputMessage),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            NeMoGymResponseOutputMessage,
        ),
        ({"role": "assistant", "content": [], "id": "m", "type": "message"}, NeMoGymResponseOutputMessage),
        (
            {"role": "assistant", "content": [NeMoGymResponseOutputText(text="x")]},
            NeMoGymResponseOutputMessage,
        ),
        ({"type": "reasoning", "summary": []}, NeMoGymResponseReasoningItem),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""},
            NeMoGymResponseFunctionToolCall,
        ),
        ({"type": "function_call_output", "call_id": "c", "output": ""}, NeMoGymFunctionCallOutput),
        ({"type": "input_message", "role": 5}, NeMoGymResponseItem),
        ({"type": "computer_call", "action": {}}, NeMoGymResponseItem),
        ({"id": "an item to refer to"}, NeMoGymResponseItem),
        ({"type": ["no text"]}, None),
    ],
)
def test_type_picks_the_model_of_an_input_item(item: dict[str, Any], model: type | None) -> None:
    if model is None:
        assert len(errors_of(NeMoGymResponseCreateParamsNonStreaming, {"input": [item]})) == 1
    else:
        assert type(input_item(item)) is model


@pytest.mark.parametrize(
    ("item", "model"),
    [
        ({"content": []}, NeMoGymResponseOutputMessage),
        ({"type": "message", "role": "assistant", "content": [OUTPUT_TEXT]}, NeMoGymResponseOutputMessage),
        ({"role": "user", "content": "what a simulated user said"}, NeMoGymEasyInputMessage),
        ({"type": "function_call_output", "call_id": "c", "output": "x"}, NeMoGymFunctionCallOutput),
        ({"type": "web_search_call", "id": "w", "action": {"query": "q"}}, NeMoGymResponseItem),
    ],
)
def test_type_picks_the_model_of_an_output_item(item: dict[str, Any], model: type) -> None:
    assert type(output_item(item)) is model


@pytest.mark.parametrize(
    ("item", "model"),
    [
        ({"role": "user", "content": "x"}, NeMoGymEasyInputMessageForTraining),
        ({"role": "user", "content": [INPUT_TEXT], "status": "completed"}, NeMoGymMessageForTraining),
        ({"role": "assistant", "content": [OUTPUT_TEXT]}, NeMoGymResponseOutputMessageForTraining),
        ({"type": "reasoning", "summary": []}, NeMoGymResponseReasoningItemForTraining),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""},
            NeMoGymResponseFunctionToolCallForTraining,
        ),
    ],
)
def test_an_item_with_token_ids_is_for_training_and_keeps_them(item: dict[str, Any], model: type) -> None:
    item = {**item, **TOKENS, "beyond": 1}
    for parsed in (input_item(item), output_item(item)):
        assert type(parsed) is model
        assert parsed.model_dump(exclude_unset=True) == item


def test_an_item_with_null_token_ids_is_not_for_training() -> None:
    item = {"role": "assistant", "content": [OUTPUT_TEXT], **dict.fromkeys(TOKENS)}
    parsed = output_item(item)
    assert type(parsed) is NeMoGymResponseOutputMessage
    assert parsed.model_dump(exclude_unset=True) == item


def test_tokens_without_log_probabilities_are_an_error_not_a_training_sample() -> None:
    item = {"role": "assistant", "content": [OUTPUT_TEXT], **TOKENS}
    del item["generation_log_probs"]
    [(where, what)] = errors_of(NeMoGymResponse, {"output": [item]})
    assert where[-1] == "generation_log_probs"
    assert what == "Field required"


def test_instances_keep_their_class_and_all_their_fields() -> None:
    class Marked(NeMoGymResponseOutputMessage):
        mark: int = 5

    trained = NeMoGymResponseOutputMessageForTraining.model_validate({"content": [OUTPUT_TEXT], **TOKENS})
    items = [trained, Marked(content=[]), NeMoGymEasyInputMessage(role="user", content="x"), a_message()]
    response = a_response(*items)
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": items})
    for kept in (response.output, params.input):
        assert isinstance(kept, list)
        assert all(one is other for one, other in zip(kept, items, strict=True))
    assert response.model_dump()["output"][0]["generation_log_probs"] == [-0.5]
    assert response.model_dump()["output"][1]["mark"] == 5
    assert params.model_dump(mode="json")["input"][1]["mark"] == 5


def test_items_of_unknown_types_are_kept_and_read_by_attribute() -> None:
    item = {"type": "hologram", "id": "h", "shape": {"sides": [1, 2.5, None]}}
    parsed = output_item(item)
    assert parsed.shape == {"sides": [1, 2.5, None]}
    assert parsed.model_dump(exclude_unset=True) == item


def test_parts_of_unknown_types_are_kept() -> None:
    parts = [{"type": "input_image", "image_url": "u", "detail": "auto"}, {"text": "no type"}, INPUT_TEXT]
    message = input_item({"role": "user", "content": parts})
    assert isinstance(message, NeMoGymEasyInputMessage)
    assert [type(part) for part in message.content] == [
        NeMoGymResponsePart,
        NeMoGymResponsePart,
        NeMoGymResponseInputText,
    ]
    assert message.model_dump(exclude_unset=True)["content"] == parts


@pytest.mark.parametrize(
    ("data", "where", "what"),
    [
        ({}, ("input",), "Field required"),
        ({"input": 5}, ("input",), "Input should be a string or a list of items"),
        ({"input": {"role": "user"}}, ("input",), "Input should be a string or a list of items"),
        ({"input": None}, ("input",), "Input should be a string or a list of items"),
        ({"input": [5]}, ("input", "list", 0), "Input should be an item"),
        ({"input": [{"content": "x"}]}, ("input", "list", 0, "message", "role"), "Field required"),
        (
            {"input": [{"role": "user", "content": 5}]},
            ("input", "list", 0, "message", "content"),
            "Input should be a string or a list of parts",
        ),
        ({"input": "x", "tools": {}}, ("tools",), "Input should be a valid list"),
        ({"input": "x", "tools": [5]}, ("tools", 0), "Input should be an object"),
        (
            {"input": "x", "tools": [{"type": "function"}]},
            ("tools", 0, "function", "name"),
            "Field required",
        ),
        ({"input": "x", "temperature": "hot"}, ("temperature",), "Input should be a number"),
        ({"input": "x", "temperature": True}, ("temperature",), "Input should be a number"),
        ({"input": "x", "stream": True}, ("stream",), "Input should be False"),
    ],
)
def test_a_malformed_request_gives_one_clear_error(
    data: dict[str, Any], where: tuple[int | str, ...], what: str
) -> None:
    assert errors_of(NeMoGymResponseCreateParamsNonStreaming, data) == [(where, what)]


@pytest.mark.parametrize(
    ("data", "where", "what"),
    [
        ({}, ("output",), "Field required"),
        ({"output": "x"}, ("output",), "Input should be a valid list"),
        ({"output": None}, ("output",), "Input should be a valid list"),
        ({"output": ["x"]}, ("output", 0), "Input should be an item"),
        (
            {"output": [{"type": "message", "content": "x"}]},
            ("output", 0, "output_message", "content"),
            "Input should be a valid list",
        ),
        (
            {"output": [{"type": "message", "content": ["x"]}]},
            ("output", 0, "output_message", "content", 0),
            "Input should be a part",
        ),
        (
            {"output": [{"type": "function_call", "name": "f", "arguments": {}, "call_id": "c"}]},
            ("output", 0, "function_call", "arguments"),
            "Input should be a valid string",
        ),
    ],
)
def test_a_malformed_response_gives_one_clear_error(
    data: dict[str, Any], where: tuple[int | str, ...], what: str
) -> None:
    assert errors_of(NeMoGymResponse, data) == [(where, what)]


@pytest.mark.parametrize("annotation", [NeMoGymResponseInputItem, NeMoGymResponseOutputItem])
def test_item_unions_validate_outside_a_request(annotation: Any) -> None:
    item = {"type": "message", "role": "assistant", "content": [OUTPUT_TEXT]}
    adapter = TypeAdapter(annotation)
    parsed = adapter.validate_python(item)
    assert isinstance(parsed, NeMoGymResponseOutputMessage)
    assert adapter.dump_python(parsed, exclude_unset=True) == item
    assert adapter.validate_json(adapter.dump_json(parsed)) == parsed


def test_an_input_outside_a_request_is_a_list_of_items() -> None:
    [message] = TypeAdapter(NeMoGymResponseInput).validate_python([{"role": "user", "content": "x"}])
    assert isinstance(message, NeMoGymEasyInputMessage)


@pytest.mark.parametrize("model", [NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming])
def test_models_have_a_json_schema_for_the_api_page(model: type[BaseModel]) -> None:
    for mode in ("validation", "serialization"):
        schema = model.model_json_schema(mode=mode)
        assert set(model.model_fields) == set(schema["properties"])


def test_models_can_be_copied_and_pickled() -> None:
    response = a_response(a_message())
    assert copy.deepcopy(response) == response
    assert pickle.loads(pickle.dumps(response)) == response
