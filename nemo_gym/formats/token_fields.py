"""The token fields: on the assistant message in Chat Completions, on the last item of the call in Responses.

Invariant: lists are passed on by reference, never copied or iterated; they may hold 64K numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.types import LOG_PROBS_MODE_KEY_NAME, TOKEN_FIELDS

_FIELDS = (*TOKEN_FIELDS, LOG_PROBS_MODE_KEY_NAME)
_FIELD_NAMES = frozenset(TOKEN_FIELDS)
_ALL_NAMES = frozenset(_FIELDS)


def copy_tokens(source: dict[str, Any], target: dict[str, Any]) -> None:
    """Set the token fields that `source` has on `target` too."""
    if _FIELD_NAMES.isdisjoint(source):  # the usual case
        return
    for field in _FIELDS:
        value = source.get(field)
        if value is not None:
            target[field] = value


def token_fields(
    prompt: list[int], generation: list[int], log_probs: list[float], mode: str
) -> dict[str, Any]:
    """The token fields of one model call; `mode` says which log-probabilities these are."""
    return dict(zip(_FIELDS, (prompt, generation, log_probs, mode), strict=True))


def without_tokens(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without token fields, for endpoints that do not know them."""
    return {key: value for key, value in message.items() if key not in _ALL_NAMES}


@dataclass(frozen=True)
class KnownTurn:
    """The newest message of a history with known token ids."""

    position: int
    """Its index in the messages."""
    seen: list[int]
    """The ids of everything that the model had read and sampled when the turn ended."""


def newest_known_turn(messages: Sequence[Mapping[str, Any]]) -> KnownTurn | None:
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        prompt, generation = message.get("prompt_token_ids"), message.get("generation_token_ids")
        if prompt is not None and generation is not None:
            return KnownTurn(position, [*prompt, *generation])
    return None
