"""Answers that change hands within one process without being written out and read again.

Invariant: `emptied(answer)` equals what reading the answer's JSON gives, to the order of its keys, and shares
nothing that can change with what the answer was made of. Token lists, which may hold 64K numbers, are moved.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .base import TokenIDLogProbMixin
from .chat import NeMoGymChatCompletion
from .responses import NeMoGymResponse

Answer = NeMoGymResponse | NeMoGymChatCompletion

_TOKEN_LISTS = tuple(TokenIDLogProbMixin.model_fields)


class ReadJson(dict[str, Any]):
    """An object that was read from JSON and can be written as JSON again, which not all of them can."""


class HandedOver(ReadJson):
    """One that its maker changes no more, no part of it: it can be read at any later time."""


@dataclass(frozen=True)
class _Carrier:
    """An item or a message with token lists, and the way to it from the answer."""

    model: TokenIDLogProbMixin
    path: tuple[str | int, ...]


def emptied(answer: Answer) -> dict[str, Any]:
    """What `decode_json` would make of the answer's JSON. The answer's token lists go into it."""
    carriers = list(_carriers(answer))
    taken = [_take_lists(carrier.model) for carrier in carriers]
    data = answer.model_dump(mode="json")
    for carrier, lists in zip(carriers, taken, strict=True):
        target: Any = data
        for step in carrier.path:
            target = target[step]
        target.update(lists)
    return data


def _take_lists(model: TokenIDLogProbMixin) -> dict[str, list[Any]]:
    fields = model.__dict__
    lists = {name: fields[name] for name in _TOKEN_LISTS}
    fields.update({name: [] for name in _TOKEN_LISTS})  # each keeps its place among the keys
    log_probs = lists["generation_log_probs"]
    if type(log_probs) is not list:  # some are not finite; JSON cannot say that: null stands there
        lists["generation_log_probs"] = [one if math.isfinite(one) else None for one in log_probs]
    return lists


def _carriers(answer: Answer) -> Iterator[_Carrier]:
    if isinstance(answer, NeMoGymResponse):
        for index, item in enumerate(answer.output):
            if isinstance(item, TokenIDLogProbMixin):
                yield _Carrier(item, ("output", index))
    else:
        for index, choice in enumerate(answer.choices):
            if isinstance(choice.message, TokenIDLogProbMixin):
                yield _Carrier(choice.message, ("choices", index, "message"))
