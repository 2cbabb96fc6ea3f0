"""A Chat Completions answer as a Response of one model call. Only its first choice counts.

What the endpoint says beside its answer (fields that are not known here) is kept; what OpenAI repeats from
the request is repeated from `params`.

Law: there and back gives the same answer again, from either side, where
- items are as in the law of `chat_requests`, with a status and, in a Response, but for their ids;
- a completion has one choice, its finish reason `tool_calls` if and only if it has calls and was not cut, its
  content null where there is no text beside reasoning, a refusal or calls, `logprobs` null unless `params`
  asked for them, and usage with `cached_tokens` and `reasoning_tokens`;
- a Response repeats what `params` sets, and its reasoning was not cut.
"""

import time
from collections.abc import Mapping
from os import urandom
from typing import Any

from nemo_gym.formats.chat_requests import wants_log_probs
from nemo_gym.formats.conversion_error import AnswerFormatError, FormatError
from nemo_gym.formats.messages_to_items import generated_items
from nemo_gym.formats.reasoning import ReasoningStyle
from nemo_gym.formats.tokens import copy_tokens
from nemo_gym.formats.usage_conversion import responses_usage

Answer = dict[str, Any]
Item = dict[str, Any]

INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""What a Response says for a finish reason; an answer that finished in any other way is complete."""
ECHOED = frozenset(
    (
        "instructions",
        "max_output_tokens",
        "metadata",
        "parallel_tool_calls",
        "reasoning",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_p",
    )
)
"""What a Response repeats from its request."""

_PREFIXES = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}
_CONVERTED = frozenset(("id", "object", "created", "model", "choices", "usage"))


def response(completion: Mapping[str, Any], params: Mapping[str, Any], style: ReasoningStyle) -> Answer:
    """A chat completion as the Response to the Responses request `params`."""
    choice = _first_choice(completion)
    items = answer_items(choice, style, with_log_probs=wants_log_probs(params))
    reason = _incomplete_reason(choice)
    created, model = completion.get("created"), completion.get("model")
    answer: Answer = {
        "id": completion.get("id") or new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()) if created is None else created,
        "model": params.get("model") if model is None else model,
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": items,
        "usage": responses_usage(completion.get("usage")),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    for field, value in params.items():
        if field in ECHOED and value is not None:
            answer[field] = value
    for key, value in completion.items():
        if key not in _CONVERTED and key not in answer and value is not None:
            answer[key] = value
    return answer


def answer_items(choice: dict[str, Any], style: ReasoningStyle, *, with_log_probs: bool) -> list[Item]:
    """What one choice says, as output items with ids; the last one carries the token fields."""
    message = choice.get("message")
    if not isinstance(message, dict):
        raise AnswerFormatError(f"must be an object, not {type(message).__name__}", "choices[0].message")
    try:
        items = generated_items(message, style)
    except FormatError as error:
        where = f"choices[0].message.{error.where}" if error.where else "choices[0].message"
        raise AnswerFormatError(error.problem, where) from None
    own = urandom(16).hex()
    for index, item in enumerate(items):  # what items of an answer have and those of a request do not need
        kind = item["type"]
        item["id"] = f"{_PREFIXES[kind]}{own}{index}"
        if kind != "reasoning":
            item["status"] = "completed"
            if kind == "function_call" and "call_id" not in item:
                item["call_id"] = f"call_{own}{index}"
    if _incomplete_reason(choice) and items[-1]["type"] != "reasoning":
        items[-1]["status"] = "incomplete"
    if with_log_probs or message.get("annotations"):
        _annotate(items, choice, with_log_probs)
    copy_tokens(message, items[-1])
    return items


def _incomplete_reason(choice: dict[str, Any]) -> str | None:
    finish = choice.get("finish_reason")
    return INCOMPLETE_REASONS.get(finish) if isinstance(finish, str) else None


def new_id(prefix: str) -> str:
    """An id of its own in every process, forked ones too."""
    return prefix + urandom(16).hex()


def _first_choice(completion: Mapping[str, Any]) -> dict[str, Any]:
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices:
        said = completion.get("error") or sorted(map(str, completion))
        raise AnswerFormatError(f"the endpoint's answer has no choices, only: {said}", "choices")
    if not isinstance(choices[0], dict):
        raise AnswerFormatError(f"must be an object, not {type(choices[0]).__name__}", "choices[0]")
    return choices[0]


def _annotate(items: list[Item], choice: dict[str, Any], with_log_probs: bool) -> None:
    """Put log-probabilities and citations on the text that they are about."""
    text: dict[str, Any] = next((item["content"][0] for item in items if item["type"] == "message"), {})
    if text.get("type") != "output_text":
        return
    log_probs = choice.get("logprobs")
    if with_log_probs and isinstance(log_probs, dict) and isinstance(log_probs.get("content"), list):
        text["logprobs"] = log_probs["content"]
    annotations = choice["message"].get("annotations")
    if isinstance(annotations, list):
        text["annotations"] = [_flat_annotation(annotation) for annotation in annotations]


def _flat_annotation(annotation: Any) -> Any:
    citation = annotation.get("url_citation") if isinstance(annotation, dict) else None
    return {"type": "url_citation", **citation} if isinstance(citation, dict) else annotation
