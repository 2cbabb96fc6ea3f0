"""The published interface of the converters."""

import math
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChatCompletionMessage,
    NeMoGymChatCompletionMessageForTraining,
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseReasoningItem,
)
from nemo_gym.responses_converter import (
    ResponsesConverter,
    VLLMConverter,
    split_responses_input_output_items,
)

TOKENS: dict[str, Any] = {
    "prompt_token_ids": [1, 2],
    "generation_token_ids": [3],
    "generation_log_probs": [-0.5],
}
PARAMS = {
    "input": [{"role": "user", "content": "1 + 2?"}],
    "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}],
    "max_output_tokens": 9,
}
COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 5,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "<think>easy</think>",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}


def test_the_history_of_the_next_turn_contains_the_converted_completion() -> None:
    converter = VLLMConverter()
    assert converter.chat_request(PARAMS)["max_completion_tokens"] == 9
    response = converter.response(COMPLETION, PARAMS)
    output = {"type": "function_call_output", "call_id": "c1", "output": "3"}
    history = converter.chat_request({"input": [*PARAMS["input"], *response["output"], output]})
    assert history["messages"] == [
        {"role": "user", "content": "1 + 2?"},
        COMPLETION["choices"][0]["message"],
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]


def test_responses_and_completions_satisfy_the_sdk() -> None:
    converter = VLLMConverter()
    response = converter.response(COMPLETION, PARAMS)
    usage = response["usage"]
    usage["input_tokens_details"].setdefault("cache_write_tokens", 0)  # newer SDKs require it
    parsed = Response.model_validate(response)
    assert [item.type for item in parsed.output] == ["reasoning", "function_call"]
    assert NeMoGymResponse.model_validate(response).usage is not None
    back = converter.chat_completion(response)
    assert ChatCompletion.model_validate(back).choices[0].finish_reason == "tool_calls"
    assert NeMoGymChatCompletion.model_validate(back).choices[0].message.content == "<think>easy</think>"


def test_vllm_has_reasoning_in_the_text_unless_it_uses_a_parser() -> None:
    def kinds(converter: ResponsesConverter) -> list[str]:
        return [item["type"] for item in converter.response(COMPLETION, {})["output"]]

    assert kinds(VLLMConverter()) == ["reasoning", "function_call"]
    assert kinds(VLLMConverter(uses_reasoning_parser=True)) == ["message", "function_call"]
    assert kinds(ResponsesConverter()) == ["message", "function_call"]
    assert kinds(ResponsesConverter(uses_reasoning_parser=False)) == ["reasoning", "function_call"]


def test_request_models_are_converted() -> None:
    params = NeMoGymResponseCreateParamsNonStreaming(
        input=[
            NeMoGymEasyInputMessage(role="user", content="hi"),
            NeMoGymResponseReasoningItem(summary=[{"text": "t"}]),
            NeMoGymResponseFunctionToolCallForTraining(arguments="{}", call_id="c", name="add", **TOKENS),
            NeMoGymFunctionCallOutput(call_id="c", output="3"),
        ],
        temperature=0.5,
    )
    converter = ResponsesConverter(return_token_id_information=True)
    chat = converter.responses_to_chat_completion_create_params(params)
    assert isinstance(chat, NeMoGymChatCompletionCreateParamsNonStreaming)
    assert chat.model_dump(exclude_unset=True) == {
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "t",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
                ],
                **TOKENS,
            },
            {"role": "tool", "tool_call_id": "c", "content": "3"},
        ],
        "temperature": 0.5,
    }
    plain = converter.responses_to_chat_completion_create_params(params.model_dump())
    assert plain == chat


def test_chat_messages_become_item_models() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        NeMoGymChatCompletionMessageForTraining(content="<think>t</think>x", **TOKENS),
        {"role": "tool", "tool_call_id": "c", "content": "3"},
        NeMoGymChatCompletionMessage(content="done"),
    ]
    items = VLLMConverter().chat_completions_messages_to_responses_items(messages)
    assert [type(item) for item in items] == [
        NeMoGymEasyInputMessage,
        NeMoGymResponseReasoningItem,
        NeMoGymResponseOutputMessageForTraining,
        NeMoGymFunctionCallOutput,
        NeMoGymResponseOutputMessage,
    ]
    given, generated = split_responses_input_output_items(items)
    assert (given, generated) == (items[:1], items[1:])


def test_a_choice_becomes_output_item_models() -> None:
    choice = NeMoGymChatCompletion.model_validate(COMPLETION).choices[0]
    for one in (choice, COMPLETION["choices"][0]):
        reasoning, call = VLLMConverter().postprocess_chat_response(one)
        assert isinstance(reasoning, NeMoGymResponseReasoningItem)
        assert reasoning.summary[0].text == "easy"
        assert isinstance(call, NeMoGymResponseFunctionToolCall)
        assert (call.name, call.call_id) == ("add", "c1")


def test_a_nan_log_prob_is_kept() -> None:
    message = {"role": "assistant", "content": "x", **TOKENS, "generation_log_probs": [math.nan]}
    [item] = VLLMConverter().postprocess_chat_response({"message": message})
    assert isinstance(item, NeMoGymResponseOutputMessageForTraining)
    assert math.isnan(item.generation_log_probs[0])


@pytest.mark.parametrize("as_models", [False, True])
def test_a_conversation_is_split_before_the_first_generated_item(as_models: bool) -> None:
    given: list[Any] = [
        {"type": "message", "role": "user", "content": "q"},
        {"type": "message", "role": "assistant", "content": "an example"},
        {"type": "message", "role": "user", "content": "hi"},
    ]
    generated: list[Any] = [
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
        {"type": "message", "role": "user", "content": "more"},
    ]
    if as_models:
        params = NeMoGymResponseCreateParamsNonStreaming(input=given + generated)
        assert isinstance(params.input, list)
        given, generated = params.input[:3], params.input[3:]
    assert split_responses_input_output_items(given + generated) == (given, generated)
