"""The token fields: on the assistant message in Chat Completions, on the last item of the call in Responses.

Invariant: lists are handed over as they are, never copied nor walked; they may hold 64K numbers.
"""

from typing import Any

from nemo_gym.types import LOG_PROBS_MODE_KEY_NAME, TOKEN_FIELDS

_FIELDS = (*TOKEN_FIELDS, LOG_PROBS_MODE_KEY_NAME)
_FIELD_NAMES = frozenset(TOKEN_FIELDS)


def has_tokens(source: dict[str, Any]) -> bool:
    """Whether a message or an item carries any of the token fields."""
    if _FIELD_NAMES.isdisjoint(source):  # asked of every item, and nearly always the answer
        return False
    return any(source.get(field) is not None for field in TOKEN_FIELDS)


def copy_tokens(source: dict[str, Any], target: dict[str, Any]) -> None:
    """Put the token fields of `source` on `target` too: those that are there."""
    if _FIELD_NAMES.isdisjoint(source):
        return
    for field in _FIELDS:
        value = source.get(field)
        if value is not None:
            target[field] = value
