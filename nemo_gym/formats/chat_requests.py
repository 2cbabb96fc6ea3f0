"""Converts requests in both directions. In both APIs a null means "not set"; nulls are left out.

Invariant: a request that is converted and converted back is unchanged, from either side, if
- no field is null, `tools` is not empty and has functions only, and `tool_choice` comes only with `tools`;
- no two assistant messages follow each other, and all calls have ids;
- a Responses `input` is a list of items with a `type` and without ids and status. The items of a model call
  are in this order: reasoning (a summary in one part), a message, calls. Assistant messages have
  `output_text` parts with empty `annotations`, then at most one refusal. `instructions` is not used,
  `top_logprobs` comes only with `include`, and no field is set that Chat Completions does not have;
- a chat request has `max_completion_tokens` instead of `max_tokens`, no `n`, and `logprobs` only if true.
  Reasoning is in the form of the chat style. The content of assistant messages is not a list of one text; it
  is null if there are only calls, and an empty string if there is only reasoning.
"""

from collections.abc import Mapping
from typing import Any

from nemo_gym.formats.chat_style import ChatStyle
from nemo_gym.formats.conversion_error import FormatError, RequestFormatError
from nemo_gym.formats.items_to_messages import messages_from_input
from nemo_gym.formats.messages_to_items import items_from_messages
from nemo_gym.formats.tool_conversion import (
    chat_tool_choice,
    chat_tools,
    responses_tool_choice,
    responses_tools,
)

Request = dict[str, Any]

LOG_PROBS = "message.output_text.logprobs"
"""The entry of `include` that asks for log-probabilities of the text."""

_STATEFUL = frozenset(("previous_response_id", "conversation", "prompt"))
"""Fields that refer to state on the endpoint; a Chat Completions endpoint keeps none."""
_IGNORED = ("background", "context_management", "max_tool_calls", "truncation")
"""Fields that change neither the messages nor the sampling."""
_CONVERTED = (
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "reasoning",
    "max_output_tokens",
    "include",
    "top_logprobs",
)
_NOT_IN_CHAT = frozenset((*_STATEFUL, *_IGNORED, *_CONVERTED))
_NOT_IN_RESPONSES = frozenset(
    (
        "messages",
        "tools",
        "tool_choice",
        "response_format",
        "verbosity",
        "reasoning_effort",
        "max_completion_tokens",
        "max_tokens",
        "logprobs",
        "n",
    )
)


def chat_request(params: Mapping[str, Any], chat_style: ChatStyle) -> Request:
    """A Responses request as a Chat Completions request."""
    try:
        return _chat_request(params, chat_style)
    except FormatError as error:
        raise RequestFormatError(error.problem, error.where) from None


def responses_request(chat: Mapping[str, Any], chat_style: ChatStyle) -> Request:
    """A Chat Completions request as a Responses request."""
    try:
        return _responses_request(chat, chat_style)
    except FormatError as error:
        raise RequestFormatError(error.problem, error.where) from None


def _chat_request(params: Mapping[str, Any], chat_style: ChatStyle) -> Request:
    get = params.get
    if not _STATEFUL.isdisjoint(params):
        _reject_state(params)
    chat = {key: value for key, value in params.items() if key not in _NOT_IN_CHAT and value is not None}
    chat["messages"] = _system_message(get("instructions")) + messages_from_input(get("input"), chat_style)
    _add_chat_tools(params, chat)
    if (limit := get("max_output_tokens")) is not None:
        chat["max_completion_tokens"] = limit
    if (text := get("text")) is not None:
        _add_text_options(_object(text, "text"), chat)
    if (reasoning := get("reasoning")) is not None:
        effort = _object(reasoning, "reasoning").get("effort")
        if effort is not None:
            chat["reasoning_effort"] = effort
    if wants_log_probs(params):
        chat["logprobs"] = True
        if get("top_logprobs") is not None:
            chat["top_logprobs"] = get("top_logprobs")
    return chat


def wants_log_probs(params: Mapping[str, Any]) -> bool:
    """Whether a Responses request asks for the log-probabilities of the text."""
    include = params.get("include")
    is_included = isinstance(include, list) and LOG_PROBS in include
    return bool(is_included or params.get("top_logprobs") or params.get("logprobs") is True)


def _reject_state(params: Mapping[str, Any]) -> None:
    for field in sorted(_STATEFUL):
        if params.get(field) is not None:
            problem = "a Chat Completions endpoint keeps no state; send the whole conversation as input"
            raise FormatError(problem, field)


def _system_message(instructions: Any) -> list[Request]:
    if instructions is None:
        return []
    if not isinstance(instructions, str):
        raise FormatError(f"must be a string, not {type(instructions).__name__}", "instructions")
    return [{"role": "system", "content": instructions}]


def _add_chat_tools(params: Mapping[str, Any], chat: Request) -> None:
    """Endpoints reject an empty list of tools, and a `tool_choice` without tools."""
    tools, choice = params.get("tools"), params.get("tool_choice")
    if tools:
        chat["tools"] = chat_tools(tools)
        if params.get("parallel_tool_calls") is not None:
            chat["parallel_tool_calls"] = params["parallel_tool_calls"]
    if choice is not None and (tools or choice not in ("auto", "none")):
        chat["tool_choice"] = chat_tool_choice(choice)


def _add_text_options(text: Request, chat: Request) -> None:
    for key, value in text.items():
        if value is None:
            continue
        if key == "verbosity":
            chat["verbosity"] = value
        elif key == "format":
            chat["response_format"] = _response_format(_object(value, "text.format"))
        else:
            raise FormatError("a Chat Completions request has no such field; leave it out", f"text.{key}")


def _response_format(form: Request) -> Request:
    if form.get("type") != "json_schema" or "json_schema" in form:
        return form
    schema = {key: value for key, value in form.items() if key != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}


def _responses_request(chat: Mapping[str, Any], chat_style: ChatStyle) -> Request:
    get = chat.get
    if (get("n") or 1) != 1:
        raise FormatError("the Responses API generates one output; send the request n times", "n")
    params = {key: value for key, value in chat.items() if key not in _NOT_IN_RESPONSES and value is not None}
    params["input"] = items_from_messages(
        get("messages"), chat_style.reasoning, with_tokens=chat_style.sends_tokens
    )
    if (tools := get("tools")) is not None:
        params["tools"] = responses_tools(tools)
    if (choice := get("tool_choice")) is not None:
        params["tool_choice"] = responses_tool_choice(choice)
    limit = get("max_completion_tokens")
    limit = get("max_tokens") if limit is None else limit
    if limit is not None:
        params["max_output_tokens"] = limit
    if text := _text_options(get("response_format"), get("verbosity")):
        params["text"] = text
    if (effort := get("reasoning_effort")) is not None:
        params["reasoning"] = {"effort": effort}
    if get("logprobs"):
        params["include"] = [LOG_PROBS]
    return params


def _text_options(response_format: Any, verbosity: Any) -> Request:
    text: Request = {}
    if response_format is not None:
        form = _object(response_format, "response_format")
        schema = form.get("json_schema")
        text["format"] = {"type": "json_schema", **schema} if isinstance(schema, dict) else form
    if verbosity is not None:
        text["verbosity"] = verbosity
    return text


def _object(value: Any, where: str) -> Request:
    if not isinstance(value, dict):
        raise FormatError(f"must be an object, not {type(value).__name__}", where)
    return value
