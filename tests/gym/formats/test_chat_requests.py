"""Conversion of requests between Responses and Chat Completions."""

from typing import Any

import pytest

from nemo_gym.errors import InputError
from nemo_gym.formats import ChatStyle, RequestFormatError, chat_request, responses_request

PLAIN = ChatStyle()
FLAT = {
    "type": "function",
    "name": "add",
    "description": "d",
    "parameters": {"type": "object"},
    "strict": True,
}
NESTED = {"type": "function", "function": {key: value for key, value in FLAT.items() if key != "type"}}


def to_chat(**params: Any) -> dict[str, Any]:
    chat = chat_request({"input": [], **params}, PLAIN)
    assert chat.pop("messages") == []
    return chat


def to_responses(**chat: Any) -> dict[str, Any]:
    params = responses_request({"messages": [], **chat}, PLAIN)
    assert params.pop("input") == []
    return params


def test_instructions_become_the_first_message() -> None:
    assert chat_request({"input": "hi", "instructions": "be brief"}, PLAIN) == {
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    }


def test_a_leading_system_message_stays_a_message() -> None:
    system = {"role": "system", "content": "be brief"}
    assert responses_request({"messages": [system]}, PLAIN) == {"input": [{"type": "message", **system}]}


@pytest.mark.parametrize(
    ("params", "chat"),
    [
        ({"max_output_tokens": 5}, {"max_completion_tokens": 5}),
        ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "text"}}}, {"response_format": {"type": "text"}}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": None}, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"a": None}, "strict": True},
                }
            },
        ),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        (
            {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
            {"logprobs": True, "top_logprobs": 3},
        ),
        (
            {"tools": [FLAT], "tool_choice": {"type": "function", "name": "add"}},
            {"tools": [NESTED], "tool_choice": {"type": "function", "function": {"name": "add"}}},
        ),
        (
            {"tools": [FLAT], "tool_choice": "required", "parallel_tool_calls": False},
            {"tools": [NESTED], "tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {
                "tools": [FLAT],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "add"}],
                },
            },
            {
                "tools": [NESTED],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": "add"}}],
                    },
                },
            },
        ),
    ],
)
def test_a_field_converts_in_both_directions(params: dict[str, Any], chat: dict[str, Any]) -> None:
    assert to_chat(**params) == chat
    assert to_responses(**chat) == params


@pytest.mark.parametrize(
    "same",
    [
        {"model": "m", "temperature": 0.5, "top_p": 1, "seed": 7, "metadata": {"a": "b"}, "user": "u"},
        {"store": False, "service_tier": "flex", "prompt_cache_key": "k", "stream": False},
        {"stop": ["a"], "frequency_penalty": 1, "presence_penalty": 0.5, "logit_bias": {"1": 2}},
        {"top_k": 5, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_shared_and_unknown_fields_pass_through(same: dict[str, Any]) -> None:
    assert to_chat(**same) == same
    assert to_responses(**same) == same


def test_chat_fields_on_a_responses_request_reach_the_endpoint() -> None:
    extra = {"n": 1, "logprobs": True, "reasoning_effort": "low", "max_tokens": 5}
    assert to_chat(**extra) == extra


def test_nulls_are_left_out() -> None:
    nothing = {"temperature": None, "tools": None, "tool_choice": None, "text": None, "include": None}
    assert to_chat(**nothing, reasoning=None, previous_response_id=None, x=None) == {}
    assert to_chat(text={"format": None, "verbosity": None}, reasoning={"effort": None}) == {}
    assert to_responses(**nothing, response_format=None, n=None, max_tokens=None, logprobs=None) == {}


def test_fields_without_effect_in_chat_are_left_out() -> None:
    harmless = {"background": True, "truncation": "auto", "max_tool_calls": 3, "context_management": []}
    assert to_chat(**harmless, include=["reasoning.encrypted_content"], top_logprobs=0) == {}
    assert to_chat(reasoning={"summary": "auto"}) == {}


def test_without_tools_there_is_no_tool_choice() -> None:
    assert to_chat(tools=[], tool_choice="auto", parallel_tool_calls=True) == {}
    assert to_chat(tool_choice="none") == {}
    assert to_chat(tool_choice="required") == {"tool_choice": "required"}


def test_tools_already_in_the_target_form_are_kept_without_their_nulls() -> None:
    assert to_chat(tools=[NESTED]) == {"tools": [NESTED]}
    assert to_responses(tools=[FLAT]) == {"tools": [FLAT]}
    assert to_chat(tools=[{"name": "f", "strict": None}])["tools"] == [
        {"type": "function", "function": {"name": "f"}}
    ]


def test_top_logprobs_implies_log_probs() -> None:
    assert to_chat(top_logprobs=2) == {"logprobs": True, "top_logprobs": 2}
    assert to_chat(logprobs=True, top_logprobs=0) == {"logprobs": True, "top_logprobs": 0}


def test_max_tokens_is_read_as_the_token_limit() -> None:
    assert to_responses(max_tokens=5) == {"max_output_tokens": 5}
    assert to_responses(max_tokens=5, max_completion_tokens=6) == {"max_output_tokens": 6}


def test_n_equal_to_one_is_left_out() -> None:
    assert to_responses(n=1, logprobs=False) == {}


@pytest.mark.parametrize(
    ("params", "error"),
    [
        (
            {"previous_response_id": "r"},
            "previous_response_id: a Chat Completions endpoint keeps no state",
        ),
        ({"conversation": "c"}, "conversation: "),
        ({"prompt": {"id": "p"}}, "prompt: "),
        (
            {"tools": [FLAT, {"type": "web_search"}]},
            r"tools\[1\]: a tool of type 'web_search' is not supported, only functions",
        ),
        ({"tools": ["add"]}, r"tools\[0\]: a tool must be an object"),
        ({"tools": {"add": 1}}, "tools: must be a list"),
        ({"text": "x"}, "text: must be an object, not str"),
        ({"text": {"format": "x"}}, r"text.format: must be an object"),
        ({"text": {"stop": "x"}}, r"text.stop: a Chat Completions request has no such field"),
        ({"reasoning": "low"}, "reasoning: must be an object"),
        ({"instructions": ["x"]}, "instructions: must be a string, not list"),
        ({"input": None}, "input: must be a string or a list of items"),
    ],
)
def test_a_responses_request_without_a_chat_equivalent_is_rejected(
    params: dict[str, Any], error: str
) -> None:
    with pytest.raises(RequestFormatError, match=error) as caught:
        chat_request({"input": [], **params}, PLAIN)
    assert isinstance(caught.value, InputError)


@pytest.mark.parametrize(
    ("chat", "error"),
    [
        ({"n": 2}, "n: the Responses API generates one output"),
        ({"tools": [{"type": "custom", "custom": {}}]}, r"tools\[0\]: a tool of type 'custom'"),
        ({"response_format": "json"}, "response_format: must be an object"),
        ({"messages": None}, "messages: must be a list"),
    ],
)
def test_a_chat_request_without_a_responses_equivalent_is_rejected(chat: dict[str, Any], error: str) -> None:
    with pytest.raises(RequestFormatError, match=error):
        responses_request({"messages": [], **chat}, PLAIN)


def test_token_fields_of_the_history_are_sent_only_if_the_endpoint_accepts_them() -> None:
    tokens = {"generation_token_ids": [1], "prompt_token_ids": [2], "generation_log_probs": [-1.0]}
    params = {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **tokens}]}
    with_tokens = ChatStyle(sends_tokens=True)
    chat = chat_request(params, with_tokens)
    assert chat["messages"][0].items() >= tokens.items()
    assert not chat_request(params, PLAIN)["messages"][0].keys() & tokens.keys()
    assert responses_request(chat, with_tokens) == params
    assert not responses_request(chat, PLAIN)["input"][0].keys() & tokens.keys()
