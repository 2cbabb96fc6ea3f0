"""Builds a chat completion from a generation."""

import logging
import time
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import uuid4

from nemo_gym.formats.generated_text import parse_generated
from nemo_gym.formats.token_fields import token_fields
from nemo_gym.local_engine import Generation
from nemo_gym.local_engine.engine_generation import LOG_PROBS_MODE

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompletionContents:
    """What a chat completion contains besides text."""

    calls: bool
    """Tool calls; true if the request offers tools."""
    tokens: bool
    """Token ids and log-probabilities as sampled, on the message."""
    log_probs: bool
    """The API's own log-probabilities, on the choice."""


def completion(
    generation: Generation, prompt: list[int], model: str, contents: CompletionContents
) -> dict[str, Any]:
    parsed = parse_generated(generation.text, tools_offered=contents.calls)
    message: dict[str, Any] = {"role": "assistant", "content": parsed.text}
    if parsed.reasoning is not None:
        message["reasoning_content"] = parsed.reasoning
    if parsed.calls:
        message["content"] = parsed.text or None
        message["tool_calls"] = parsed.tool_calls()
    if contents.tokens:
        message |= token_fields(prompt, generation.token_ids, generation.log_probs, LOG_PROBS_MODE)
    finish_reason = _finish_reason(generation, message)
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish_reason}
    if contents.log_probs:
        choice["logprobs"] = {"content": [_without_id(info) for info in generation.token_info]}
    return _with_usage(choice, model, len(prompt), len(generation.token_ids), generation.cached_tokens)


@cache
def warn_about_long_prompts(server_name: str, context: int) -> None:
    """Logged once per server: a run may have many such prompts."""
    logger.warning(
        "%s: a prompt does not fit into the context of %d tokens; the response to this and every other such "
        "prompt is incomplete, with an empty text (set context to allow longer prompts)",
        server_name,
        context,
    )


def empty_completion(prompt_tokens: int, model: str) -> dict[str, Any]:
    """The chat completion for a prompt that does not fit into the context."""
    choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "length"}
    return _with_usage(choice, model, prompt_tokens, 0, 0)


def _finish_reason(generation: Generation, message: dict[str, Any]) -> str:
    if generation.ended_by == "length":
        return "length"
    return "tool_calls" if "tool_calls" in message else "stop"


def _with_usage(
    choice: dict[str, Any], model: str, prompt_tokens: int, tokens: int, cached_tokens: int
) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": prompt_tokens + tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _without_id(info: dict[str, Any]) -> dict[str, Any]:
    """The token information that the API has: all but the id."""
    return {
        "token": info["token"],
        "logprob": info["logprob"],
        "bytes": info["bytes"],
        "top_logprobs": [
            {"token": top["token"], "logprob": top["logprob"], "bytes": top["bytes"]}
            for top in info["top_logprobs"]
        ],
    }
