"""Converts a chat completion into a model response of one model call. Only its first choice is used.

Fields that are not known here are kept. Fields that OpenAI repeats from the request are repeated from
`params`.

Invariant: what is converted and converted back is unchanged, from either side, if
- the items are as `chat_requests` requires, but with a status; the ids of items are not compared;
- a completion has one choice; its finish reason is `tool_calls` if and only if it has calls and was not
  truncated; its content is null if there is no text but reasoning, a refusal or calls; `logprobs` is null
  unless `params` asks for them; its usage has `cached_tokens` and `reasoning_tokens`;
- a model response repeats what `params` sets, and its reasoning was not truncated.
"""

import time
from collections.abc import Mapping
from os import urandom
from typing import Any

from nemo_gym.formats.chat_requests import wants_log_probs
from nemo_gym.formats.conversion_error import FormatError, ResponseFormatError
from nemo_gym.formats.messages_to_items import generated_items
from nemo_gym.formats.reasoning import ReasoningStyle
from nemo_gym.formats.token_fields import copy_tokens
from nemo_gym.formats.usage_conversion import responses_usage

Response = dict[str, Any]
Item = dict[str, Any]

INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""The `reason` of an incomplete response, by finish reason; with any other finish reason it is complete."""
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
"""Fields that a model response repeats from its request."""

_PREFIXES = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}
_CONVERTED = frozenset(("id", "object", "created", "model", "choices", "usage"))


def response(completion: Mapping[str, Any], params: Mapping[str, Any], style: ReasoningStyle) -> Response:
    """A chat completion as the model response to the Responses request `params`."""
    choice = _first_choice(completion)
    items = output_items(choice, style, with_log_probs=wants_log_probs(params))
    reason = _incomplete_reason(choice)
    created, model = completion.get("created"), completion.get("model")
    result: Response = {
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
            result[field] = value
    for key, value in completion.items():
        if key not in _CONVERTED and key not in result and value is not None:
            result[key] = value
    return result


def output_items(choice: dict[str, Any], style: ReasoningStyle, *, with_log_probs: bool) -> list[Item]:
    """One choice as output items with ids; the last one has the token fields."""
    message = choice.get("message")
    if not isinstance(message, dict):
        raise ResponseFormatError(f"must be an object, not {type(message).__name__}", "choices[0].message")
    try:
        items = generated_items(message, style)
    except FormatError as error:
        where = f"choices[0].message.{error.where}" if error.where else "choices[0].message"
        raise ResponseFormatError(error.problem, where) from None
    unique = urandom(16).hex()
    for index, item in enumerate(items):  # output items have an id and a status; input items need neither
        kind = item["type"]
        item["id"] = f"{_PREFIXES[kind]}{unique}{index}"
        if kind != "reasoning":
            item["status"] = "completed"
            if kind == "function_call" and "call_id" not in item:
                item["call_id"] = f"call_{unique}{index}"
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
    """A unique id, also in forked processes."""
    return prefix + urandom(16).hex()


def _first_choice(completion: Mapping[str, Any]) -> dict[str, Any]:
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices:
        found = completion.get("error") or sorted(map(str, completion))
        raise ResponseFormatError(f"the endpoint's chat completion has no choices, only: {found}", "choices")
    if not isinstance(choices[0], dict):
        raise ResponseFormatError(f"must be an object, not {type(choices[0]).__name__}", "choices[0]")
    return choices[0]


def _annotate(items: list[Item], choice: dict[str, Any], with_log_probs: bool) -> None:
    """Put log-probabilities and citations on the text that they belong to."""
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
