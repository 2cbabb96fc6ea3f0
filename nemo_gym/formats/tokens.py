"""The token fields: on the assistant message in Chat Completions, on the last item of the call in Responses.

Invariant: lists are handed over as they are, never copied nor walked; they may hold 64K numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.types import LOG_PROBS_MODE_KEY_NAME, TOKEN_FIELDS

_FIELDS = (*TOKEN_FIELDS, LOG_PROBS_MODE_KEY_NAME)
_FIELD_NAMES = frozenset(TOKEN_FIELDS)
_ALL_NAMES = frozenset(_FIELDS)


def copy_tokens(source: dict[str, Any], target: dict[str, Any]) -> None:
    """Put the token fields of `source` on `target` too: those that are there."""
    if _FIELD_NAMES.isdisjoint(source):  # nearly always
        return
    for field in _FIELDS:
        value = source.get(field)
        if value is not None:
            target[field] = value


def token_fields(
    prompt: list[int], generation: list[int], log_probs: list[float], mode: str
) -> dict[str, Any]:
    """The tokens of one call as they stand on a message or an item; `mode` says which log-probabilities."""
    return dict(zip(_FIELDS, (prompt, generation, log_probs, mode), strict=True))


def without_tokens(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as somebody takes it who knows nothing of tokens."""
    return {key: value for key, value in message.items() if key not in _ALL_NAMES}


@dataclass(frozen=True)
class KnownTurn:
    """The newest message of a history whose tokens are known."""

    position: int
    """Among the messages."""
    seen: list[int]
    """All that the model had read and sampled by its end."""


def newest_known_turn(messages: Sequence[Mapping[str, Any]]) -> KnownTurn | None:
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        prompt, generation = message.get("prompt_token_ids"), message.get("generation_token_ids")
        if prompt is not None and generation is not None:
            return KnownTurn(position, [*prompt, *generation])
    return None
