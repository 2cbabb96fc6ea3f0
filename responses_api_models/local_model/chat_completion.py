"""A generation as an answer of the Chat Completions API."""

import logging
import time
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import uuid4

from nemo_gym.formats.generated_text import parse_generated
from nemo_gym.formats.tokens import token_fields
from nemo_gym.local_engine import Generation
from nemo_gym.local_engine.generation import LOG_PROBS_MODE

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """What an answer is to hold."""

    calls: bool
    """Whether tools were offered."""
    tokens: bool
    """Ids and log-probabilities as they were sampled, on the message."""
    log_probs: bool
    """Those that the API has a place for, on the choice."""


def completion(generation: Generation, prompt: list[int], model: str, wanted: Wanted) -> dict[str, Any]:
    """The answer."""
    written = parse_generated(generation.text, tools_offered=wanted.calls)
    message: dict[str, Any] = {"role": "assistant", "content": written.text}
    if written.reasoning is not None:
        message["reasoning_content"] = written.reasoning
    if written.calls:
        message["content"] = written.text or None
        message["tool_calls"] = written.tool_calls()
    if wanted.tokens:
        message |= token_fields(prompt, generation.token_ids, generation.log_probs, LOG_PROBS_MODE)
    finish_reason = _finish_reason(generation, message)
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish_reason}
    if wanted.log_probs:
        choice["logprobs"] = {"content": [_as_asked(told) for told in generation.told]}
    return _answer(choice, model, len(prompt), len(generation.token_ids), generation.cached_tokens)


@cache
def tell_of_long_prompts(server_name: str, context: int) -> None:
    """Said once: a run may have many."""
    logger.warning(
        "%s: a prompt does not fit the context of %d tokens and is answered empty, as incomplete; so are all "
        "others like it (set context to allow longer ones)",
        server_name,
        context,
    )


def no_room(prompt_tokens: int, model: str) -> dict[str, Any]:
    """The answer to a prompt that does not fit into the context."""
    choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "length"}
    return _answer(choice, model, prompt_tokens, 0, 0)


def _finish_reason(generation: Generation, message: dict[str, Any]) -> str:
    if generation.ended_by == "length":
        return "length"
    return "tool_calls" if "tool_calls" in message else "stop"


def _answer(
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


def _as_asked(told: dict[str, Any]) -> dict[str, Any]:
    """What the API says of a token: all but its id."""
    return {
        "token": told["token"],
        "logprob": told["logprob"],
        "bytes": told["bytes"],
        "top_logprobs": [
            {"token": one["token"], "logprob": one["logprob"], "bytes": one["bytes"]}
            for one in told["top_logprobs"]
        ],
    }
