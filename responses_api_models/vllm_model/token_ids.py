"""The tokens of model calls: read from the engine's responses and sent as a prompt.

Invariant: ids and log-probabilities are the engine's own. If the engine returns them in several places, they
are equal. Anything else is an error; nothing is guessed.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException

from nemo_gym.formats.extra_body import LENGTH_FIELDS
from nemo_gym.formats.token_fields import token_fields
from nemo_gym.openai_utils import TokenIDLogProbMixin

Body = Mapping[str, Any]

TOKEN_FIELDS = tuple(TokenIDLogProbMixin.model_fields)
LOG_PROBS_MODE_FIELD = "generation_log_probs_mode"
TOKEN_REQUEST_FIELDS: dict[str, Any] = {"return_tokens_as_token_ids": True, "return_token_ids": True, "n": 1}
RENDERED = (
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "add_special_tokens",
    "continue_final_message",
)
"""Fields of a chat request that change its prompt, besides the messages."""
_CHAT_ONLY = (
    *RENDERED,
    "messages",
    "tool_choice",
    "parallel_tool_calls",
    "max_completion_tokens",
    "top_logprobs",
    "reasoning_effort",
    "add_generation_prompt",
)
_ID_PREFIX = "token_id:"


class TokenInformationError(HTTPException):
    """The engine's token information is missing or contradicts itself."""

    def __init__(self, problem: str) -> None:
        super().__init__(502, f"token information: {problem}")


class UnsupportedRequestError(HTTPException):
    """A request that this server cannot send to the engine; the caller has to change it."""

    def __init__(self, problem: str) -> None:
        super().__init__(422, problem)


@dataclass(frozen=True)
class CallTokens:
    """The tokens of one call: its prompt and its generation."""

    prompt: list[int] | None
    """None: the completion does not contain it; the prompt has to be tokenised."""
    generation: list[int]
    log_probs: list[float]

    def fields(self, prompt: list[int], mode: str) -> dict[str, Any]:
        """The token fields of a message."""
        return token_fields(prompt, self.generation, self.log_probs, mode)


def tokens_of_chat(completion: Body) -> CallTokens:
    """The tokens of a chat completion."""
    choice = only_choice(completion)
    if not isinstance(choice.get("message"), dict):
        raise TokenInformationError("the endpoint's chat completion has no message")
    logged = _LogProbs.of_chat(choice.get("logprobs"))
    prompt, generation = completion.get("prompt_token_ids"), choice.get("token_ids")
    bundle = _bundle(choice["message"])
    if bundle is None:
        return _listed(prompt, generation, logged) or _logged_only(logged)
    if prompt is not None:
        _agree("prompt_token_ids of the message and of the completion", bundle.prompt, prompt)
    if generation is not None:
        _agree("generation_token_ids and token_ids", bundle.generation, generation)
    if logged.ids is not None:
        _agree("generation_token_ids and the ids in logprobs", bundle.generation, logged.ids)
    return bundle


def tokens_of_completion(completion: Body, prompt: list[int]) -> CallTokens:
    """The tokens of a completion (not a chat completion) whose prompt was sent as ids."""
    choice = only_choice(completion)
    logged = _LogProbs.of_completion(choice.get("logprobs"))
    returned = choice.get("prompt_token_ids")
    if returned is not None:
        _agree("the prompt sent and prompt_token_ids", prompt, returned)
    generation = choice.get("token_ids")
    found = _logged_only(logged) if generation is None else _listed(prompt, generation, logged)
    assert found is not None  # never None if there is a generation
    return CallTokens(prompt, found.generation, found.log_probs)


def only_choice(completion: Body) -> Body:
    """The choice of a completion that must have exactly one."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        count = len(choices) if isinstance(choices, list) else 0
        raise TokenInformationError(f"the endpoint's completion has {count} choices instead of one")
    choice: Body = choices[0]
    return choice


@dataclass(frozen=True)
class _LogProbs:
    """The list of log-probabilities in a completion."""

    ids: list[int] | None
    """None: its tokens are not ids."""
    log_probs: list[float] | None

    @classmethod
    def of_chat(cls, logprobs: Body | None) -> "_LogProbs":
        content = (logprobs or {}).get("content")
        if content is None:
            return cls(None, None)
        tokens = [entry.get("token") or "" for entry in content]
        return cls.of_lists(tokens, [entry.get("logprob") for entry in content])

    @classmethod
    def of_completion(cls, logprobs: Body | None) -> "_LogProbs":
        if not logprobs or logprobs.get("token_logprobs") is None:
            return cls(None, None)
        return cls.of_lists(logprobs.get("tokens") or [], logprobs["token_logprobs"])

    @classmethod
    def of_lists(cls, tokens: Sequence[str], log_probs: Sequence[float | None]) -> "_LogProbs":
        are_ids = [token.startswith(_ID_PREFIX) for token in tokens]
        ids = [int(token[len(_ID_PREFIX) :]) for token in tokens] if all(are_ids) else None
        if ids is None and any(are_ids):
            raise TokenInformationError("some tokens in logprobs are ids and some are text")
        return cls(ids, [math.nan if value is None else value for value in log_probs])


def _bundle(message: Body) -> CallTokens | None:
    """The token fields that a policy server puts on the message: all three or none."""
    values = [message.get(field) for field in TOKEN_FIELDS]
    missing = [field for field, value in zip(TOKEN_FIELDS, values, strict=True) if value is None]
    if len(missing) == len(TOKEN_FIELDS):
        return None
    if missing:
        raise TokenInformationError(f"the message has token ids, but no {' and no '.join(missing)}")
    prompt, generation, log_probs = values
    assert prompt is not None and generation is not None and log_probs is not None
    numbers = [math.nan if value is None else value for value in log_probs]
    return _counted(CallTokens(prompt, generation, numbers))


def _listed(prompt: list[int] | None, generation: list[int] | None, logged: _LogProbs) -> CallTokens | None:
    """The tokens that `return_token_ids` adds, with the log-probabilities of `logprobs`."""
    if prompt is None and generation is None:
        return None
    if prompt is None or generation is None:
        there, missing = (
            ("prompt_token_ids", "token_ids") if generation is None else ("token_ids", "prompt_token_ids")
        )
        raise TokenInformationError(f"the completion has {there}, but no {missing}")
    if logged.ids is not None:
        _agree("token_ids and the ids in logprobs", generation, logged.ids)
    log_probs = logged.log_probs
    if log_probs is None and generation:
        raise TokenInformationError("the completion has token_ids, but no logprobs")
    return _counted(CallTokens(prompt, generation, log_probs or []))


def _logged_only(logged: _LogProbs) -> CallTokens:
    """The tokens that `return_tokens_as_token_ids` adds; an engine that supports neither is an error."""
    if logged.ids is None or logged.log_probs is None:
        raise TokenInformationError(
            "the endpoint returns no token ids; serve the model with vLLM (0.10.2 or later is best), "
            "or set return_token_id_information: false"
        )
    return _counted(CallTokens(None, logged.ids, logged.log_probs))


def _counted(tokens: CallTokens) -> CallTokens:
    if len(tokens.generation) != len(tokens.log_probs):
        raise TokenInformationError(
            f"{len(tokens.generation)} generated ids, but {len(tokens.log_probs)} log-probabilities"
        )
    return tokens


def _agree(which: str, one: Sequence[int] | None, other: Sequence[int] | None) -> None:
    if one != other:
        raise TokenInformationError(f"{which} differ ({difference(one or (), other or ())})")


def difference(one: Sequence[int], other: Sequence[int]) -> str:
    """The first place at which two lists of ids differ."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return f"at position {position}: {a} and {b}"
    return f"their lengths: {len(one)} and {len(other)}"


def reject_chat_only_features(chat: Body) -> None:
    """Raise if a request uses a feature that a prompt of token ids cannot express."""
    where = "is not possible with token_id_replay: completions; set token_id_replay: messages"
    choice = chat.get("tool_choice")
    if chat.get("tools") and choice not in (None, "auto", "none"):
        raise UnsupportedRequestError(f"tool_choice {json.dumps(choice)} {where}")
    if chat.get("continue_final_message"):
        raise UnsupportedRequestError(f"continue_final_message {where}")
    for message in chat["messages"]:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part.get("type") not in ("text", "refusal"):
                raise UnsupportedRequestError(f"content of type {part.get('type')!r} {where}")


def completion_request(chat: Body, prompt: list[int], max_model_len: int | None) -> dict[str, Any]:
    """The Completions request for a chat request with this prompt; its token limit fits into the context."""
    limits = [chat[name] for name in LENGTH_FIELDS if chat.get(name) is not None][:1]
    if max_model_len is not None:
        limits.append(max_model_len - len(prompt))
    if not limits:  # without a limit, this route ends every generation after 16 tokens
        raise UnsupportedRequestError(
            "the endpoint does not report its context length; set max_output_tokens"
        )
    passed_on = {name: value for name, value in chat.items() if name not in _CHAT_ONLY}
    return {
        **passed_on,
        **TOKEN_REQUEST_FIELDS,
        "prompt": prompt,
        "max_tokens": min(limits),
        "logprobs": chat.get("top_logprobs") or 0,
    }
