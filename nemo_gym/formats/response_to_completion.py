"""Converts a model response of one model call into a chat completion."""

import time
from collections.abc import Mapping
from itertools import chain
from typing import Any

from nemo_gym.formats.assistant_turn import AssistantTurn
from nemo_gym.formats.completion_to_response import ECHOED, INCOMPLETE_REASONS, new_id
from nemo_gym.formats.conversion_error import FormatError, ResponseFormatError
from nemo_gym.formats.items_to_messages import item_type
from nemo_gym.formats.reasoning import ReasoningStyle
from nemo_gym.formats.usage_conversion import chat_usage
from nemo_gym.openai_utils.wire_model import has_tokens

Completion = dict[str, Any]
Item = dict[str, Any]

_FINISH_REASONS = {reason: finish for finish, reason in INCOMPLETE_REASONS.items()}
_NOT_IN_CHAT = frozenset(
    (
        *ECHOED,
        "access_programs",
        "background",
        "completed_at",
        "conversation",
        "created_at",
        "error",
        "id",
        "image",
        "incomplete_details",
        "max_tool_calls",
        "model",
        "object",
        "output",
        "previous_response_id",
        "prompt",
        "prompt_cache_diagnostics",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "status",
        "store",
        "tool_usage",
        "top_logprobs",
        "truncation",
        "usage",
        "user",
    )
)
_CALLER_TOOLS = ("custom_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call")
"""Calls whose output the caller must provide. Calls of tools that the endpoint ran itself are left out."""


def chat_completion(response: Mapping[str, Any], style: ReasoningStyle) -> Completion:
    """A model response as a chat completion with one choice."""
    try:
        output = _output(response)
        turn = _turn_of(output)
    except FormatError as error:
        raise ResponseFormatError(error.problem, error.where) from None
    created = response.get("created_at")
    completion: Completion = {
        "id": response.get("id") or new_id("chatcmpl-"),
        "object": "chat.completion",
        "created": int(time.time() if created is None else created),
        "model": response.get("model"),
        "choices": [_choice(response, output, turn, style)],
        "usage": chat_usage(response.get("usage")),
    }
    for key, value in response.items():
        if key not in _NOT_IN_CHAT and value is not None:
            completion[key] = value
    return completion


def _output(response: Mapping[str, Any]) -> list[Any]:
    status = response.get("status")
    if response.get("error") is not None or status not in (None, "completed", "incomplete"):
        raise FormatError(f"the response has no output: status {status!r}, error {response.get('error')!r}")
    output = response.get("output")
    if not isinstance(output, list):
        raise FormatError(f"must be a list of items, not {type(output).__name__}", "output")
    return output


def _turn_of(output: list[Any]) -> AssistantTurn:
    turn = AssistantTurn()
    for index, item in enumerate(output):
        try:
            if has_tokens(turn.last):
                raise FormatError("a second model call begins here; a chat completion holds only one")
            _add(turn, item)
        except FormatError as error:
            raise error.within(f"output[{index}]") from None
    return turn


def _add(turn: AssistantTurn, item: Any) -> None:
    kind = item_type(item)
    if kind == "message" and item.get("role", "assistant") == "assistant":
        turn.add_message(item)
    elif kind == "reasoning":
        turn.add_reasoning(item)
    elif kind == "function_call":
        turn.add_call(item)
    elif kind in ("message", *_CALLER_TOOLS) or str(kind).endswith("_output"):
        raise FormatError(f"a chat completion cannot contain this item of type {kind!r}")


def _choice(
    response: Mapping[str, Any], output: list[Item], turn: AssistantTurn, style: ReasoningStyle
) -> dict[str, Any]:
    message = turn.message(_text(turn), style, with_tokens=True)
    if message["content"] is None and not (turn.thoughts or turn.refusals or turn.calls):
        message["content"] = ""
    texts = [part for item in output for part in _texts(item)]
    if annotations := [_nested_annotation(one) for part in texts for one in part.get("annotations") or ()]:
        message["annotations"] = annotations
    return {
        "index": 0,
        "message": message,
        "finish_reason": _finish_reason(response, turn),
        "logprobs": _joined_log_probs(texts),
    }


def _joined_log_probs(texts: list[dict[str, Any]]) -> dict[str, Any] | None:
    with_log_probs = [part["logprobs"] for part in texts if part.get("logprobs")]
    if not with_log_probs:
        return None
    if len(with_log_probs) == 1:
        return {"content": with_log_probs[0], "refusal": None}
    return {"content": list(chain.from_iterable(with_log_probs)), "refusal": None}


def _texts(item: Item) -> list[dict[str, Any]]:
    content = item.get("content")
    if item.get("type") not in ("message", None) or not isinstance(content, list):
        return []
    return [part for part in content if part.get("type") == "output_text"]


def _text(turn: AssistantTurn) -> str | None:
    """The text of all parts: the content of a chat completion's message is one string."""
    if not turn.parts:
        return None
    return "".join(part["text"] for part in turn.parts if part.get("type") == "text")


def _finish_reason(response: Mapping[str, Any], turn: AssistantTurn) -> str:
    details = response.get("incomplete_details")
    if isinstance(details, dict) and details.get("reason") is not None:
        return _FINISH_REASONS.get(details["reason"], "length")
    if response.get("status") == "incomplete":
        return "length"
    return "tool_calls" if turn.calls else "stop"


def _nested_annotation(annotation: Any) -> Any:
    if not isinstance(annotation, dict) or annotation.get("type") != "url_citation":
        return annotation
    citation = {key: value for key, value in annotation.items() if key != "type"}
    return {"type": "url_citation", "url_citation": citation}
