"""The Chat Completions models with data from other endpoints, with tokens, and with malformed data."""

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionAssistantMessageForTrainingParam,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChatCompletionMessage,
    NeMoGymChatCompletionMessageForTraining,
    NeMoGymChatCompletionMessageParam,
    NeMoGymChatCompletionMessageToolCall,
    NeMoGymChoice,
    NeMoGymFunction,
)

TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}


def errors_of(model: type[BaseModel], data: object) -> list[tuple[tuple[int | str, ...], str]]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(data)
    return [(error["loc"], error["msg"]) for error in caught.value.errors()]


@pytest.mark.parametrize(
    "completion",
    [
        {"choices": []},
        {"choices": [{"message": {"content": "x"}}]},
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1700000000,
            "model": "Qwen/Qwen3-8B",
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": None,
                        "reasoning_content": "hm",
                        "tool_calls": [
                            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                            {"index": 1, "function": {"name": "f", "arguments": "{}"}},
                        ],
                    },
                    "logprobs": {"content": [{"token": "a", "logprob": -1, "token_id": 5}]},
                    "finish_reason": "abort",
                    "stop_reason": None,
                }
            ],
            "usage": {
                "prompt_tokens": 1,
                "completion_tokens": 2,
                "total_tokens": 3,
                "prompt_tokens_details": None,
            },
            "prompt_logprobs": None,
            "timings": {"prompt_ms": 1.5},
        },
    ],
)
def test_completions_without_openai_specific_fields_survive_a_round_trip(completion: dict[str, Any]) -> None:
    assert NeMoGymChatCompletion.model_validate(completion).model_dump(exclude_unset=True) == completion


def test_models_are_built_by_keyword_and_keep_their_class() -> None:
    message = NeMoGymChatCompletionMessageForTraining.model_validate(
        {
            "role": "assistant",
            "tool_calls": [
                NeMoGymChatCompletionMessageToolCall(
                    id="c", function=NeMoGymFunction(arguments="{}", name="f")
                )
            ],
            **TOKENS,
        }
    )
    completion = NeMoGymChatCompletion(
        id="c",
        choices=[NeMoGymChoice(finish_reason="stop", index=0, message=message)],
        created=0,
        model="m",
        object="chat.completion",
    )
    assert completion.choices[0].message is message
    assert completion.model_dump()["choices"][0]["message"]["generation_token_ids"] == [3]
    assert NeMoGymChatCompletion.model_validate(completion.model_dump()) == completion


def test_a_message_with_token_ids_is_for_training() -> None:
    choices = [{"message": {"content": "x", **TOKENS}}, {"message": {"content": "x"}}]
    completion = NeMoGymChatCompletion.model_validate({"choices": choices})
    assert [type(choice.message) for choice in completion.choices] == [
        NeMoGymChatCompletionMessageForTraining,
        NeMoGymChatCompletionMessage,
    ]


def test_messages_of_a_request_are_dicts_that_keep_unknown_fields() -> None:
    messages = [
        {"role": "system", "content": "x", "cache": True},
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "video_url", "video_url": {}}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [{"type": "custom"}]},
        {"role": "assistant", "content": "x", **TOKENS},
        {"role": "tool", "content": "x", "tool_call_id": "c"},
        {"role": "a role of the template", "anything": [1]},
    ]
    params = NeMoGymChatCompletionCreateParamsNonStreaming.model_validate({"messages": messages, "top_k": 5})
    assert params.messages == messages
    assert params.model_dump(exclude_unset=True) == {"messages": messages, "top_k": 5}


def test_a_dict_message_for_training_requires_all_token_fields() -> None:
    adapter = TypeAdapter(NeMoGymChatCompletionAssistantMessageForTrainingParam)
    message = {"role": "assistant", "content": "x", "unknown": 1, **TOKENS}
    assert adapter.validate_python(message) == message
    union: TypeAdapter[Any] = TypeAdapter(NeMoGymChatCompletionMessageParam)
    with pytest.raises(ValidationError, match="generation_log_probs"):
        union.validate_python({"role": "assistant", "prompt_token_ids": [1], "generation_token_ids": [2]})


@pytest.mark.parametrize(
    ("data", "where", "what"),
    [
        ({}, ("messages",), "Field required"),
        ({"messages": "x"}, ("messages",), "Input should be a valid list"),
        ({"messages": [5]}, ("messages", 0), "Input should be a message"),
        ({"messages": [{"content": "x"}]}, ("messages", 0, "message", "role"), "Field required"),
        ({"messages": [{"role": "user"}]}, ("messages", 0, "user", "content"), "Field required"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            ("messages", 0, "user", "content"),
            "Input should be a string or a list of parts",
        ),
        ({"messages": [], "tools": 5}, ("tools",), "Input should be a valid list"),
        ({"messages": [], "stop": 5}, ("stop",), "Input should be a string or a list of strings"),
    ],
)
def test_a_malformed_request_gives_one_clear_error(
    data: dict[str, Any], where: tuple[int | str, ...], what: str
) -> None:
    assert errors_of(NeMoGymChatCompletionCreateParamsNonStreaming, data) == [(where, what)]


@pytest.mark.parametrize(
    ("data", "where", "what"),
    [
        ({}, ("choices",), "Field required"),
        ({"choices": [{}]}, ("choices", 0, "message"), "Field required"),
        ({"choices": [{"message": "x"}]}, ("choices", 0, "message"), "Input should be a message"),
        (
            {"choices": [{"message": {"content": 5}}]},
            ("choices", 0, "message", "message", "content"),
            "Input should be a valid string",
        ),
    ],
)
def test_a_malformed_completion_gives_one_clear_error(
    data: dict[str, Any], where: tuple[int | str, ...], what: str
) -> None:
    assert errors_of(NeMoGymChatCompletion, data) == [(where, what)]


@pytest.mark.parametrize("model", [NeMoGymChatCompletion, NeMoGymChatCompletionCreateParamsNonStreaming])
def test_models_have_a_json_schema_for_the_api_page(model: type[BaseModel]) -> None:
    for mode in ("validation", "serialization"):
        schema = model.model_json_schema(mode=mode)
        assert set(model.model_fields) == set(schema["properties"])
