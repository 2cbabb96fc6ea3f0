"""A recorded rollout as the model calls it was made of.

Invariant: the outputs of all calls, joined, are what the model generated in the rollout, in its order; their
usages add up to the recorded one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from responses_api_models.replay_model.conversations import (
    Item,
    continued,
    encoded,
    heard,
    is_generated,
    items_of,
    prompt_digest,
)

Usage = dict[str, Any]
Split = Callable[[Any], list[Any]]
"""Cuts a number into one for each call, which add up to it."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One recorded rollout, cut into its model calls."""

    name: str
    """Its key in the recorded run, for people."""
    response: dict[str, Any]
    """The recorded response without `output` and `usage`: that of the last call."""
    turns: list[list[Item]]
    usages: list[Usage | None]
    keys: list[int]
    """The conversation's key before each call, and after the last."""

    def turn_at(self, key: int, runs: int) -> int | None:
        """How many calls a conversation has behind it; None if it is not this rollout's.

        A call that only thought leaves the key as it was; then the one nearest to the runs is meant.
        """
        turns = [turn for turn, known in enumerate(self.keys) if known == key]
        return min(turns, key=lambda turn: abs(turn - runs), default=None)

    def answer(self, turn: int) -> dict[str, Any]:
        """What the model answered in this call."""
        said = {"output": self.turns[turn], "usage": self.usages[turn]}
        if turn == len(self.turns) - 1:
            return {**self.response, **said}
        # Of the calls before the last, only what they generated is recorded: the agent went on, so they
        # were complete.
        whole = {"status": "completed", "incomplete_details": None, "error": None}
        return {**self.response, "id": f"{self.response.get('id')}_{turn}", **whole, **said}

    def out_of_room(self) -> dict[str, Any]:
        """What a model answers that has no room left: an agent ends the conversation there."""
        part = {"type": "output_text", "text": "", "annotations": []}
        message = {"type": "message", "role": "assistant", "status": "incomplete", "content": [part]}
        ended = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        return {**self.response, **ended, "output": [{"id": "msg_replayed", **message}], "usage": None}

    @property
    def latency_s(self) -> float | None:
        """How long the last call took, if the endpoint said so: other times are not recorded."""
        return call_seconds(self.response)


def call_seconds(response: Mapping[str, Any]) -> float | None:
    began, ended = response.get("created_at"), response.get("completed_at")
    if isinstance(began, int | float) and isinstance(ended, int | float):
        return max(0.0, float(ended - began))
    return None


def rollout_from(record: Mapping[str, Any]) -> Rollout:
    """Cut a line of a rollouts file, which was checked, into its model calls."""
    params, response = record["responses_create_params"], dict(record["response"])
    prompt = items_of(params)
    output, usage = response.pop("output"), response.pop("usage", None)
    turns = cut(output)
    keys = [prompt_digest(heard(prompt))]
    for turn in turns:
        keys.append(continued(keys[-1], heard(turn)))
    name = f"{record.get('_ng_task_index')}:{record.get('_ng_rollout_index')}"
    return Rollout(name, response, turns, _divided(usage, prompt, turns), keys)


def cut(output: Sequence[Item]) -> list[list[Item]]:
    """The generated items by model call: what a tool or a user said ends one, and so do token ids."""
    turns: list[list[Item]] = []
    goes_on = False
    for item in output:
        if not is_generated(item):
            goes_on = False
            continue
        if not goes_on:
            turns.append([])
        turns[-1].append(item)
        goes_on = not item.get("generation_token_ids")
    return turns or [[]]


def _divided(usage: Any, prompt: Sequence[Item], turns: list[list[Item]]) -> list[Usage | None]:
    """The usage of each call: by its token ids if all carry them, else by the length of what was read and
    written."""
    if not isinstance(usage, dict):
        return [None] * len(turns)
    if len(turns) == 1:
        return [usage]
    weights = _token_counts(turns) or _lengths(prompt, turns)
    of_input, of_output = _by(weights.read), _by(weights.written)
    parts: list[Usage] = [{} for _ in turns]
    for name, value in usage.items():
        split = of_input if name.startswith("input_") else of_output
        if isinstance(value, dict):
            _share_out(value, split, [part.setdefault(name, {}) for part in parts])
        else:
            _share_out({name: value}, split, parts)
    if usage.get("total_tokens") == (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0):
        for part in parts:
            part["total_tokens"] = (part.get("input_tokens") or 0) + (part.get("output_tokens") or 0)
    return [*parts]


def _share_out(counts: Mapping[str, Any], split: Split, parts: list[Usage]) -> None:
    """Put each call's part of every count into its usage."""
    for name, value in counts.items():
        for part, share in zip(parts, split(value), strict=True):
            part[name] = share


def _by(weights: Sequence[int]) -> Split:
    total = sum(weights)

    def split(value: Any) -> list[Any]:
        if not value or isinstance(value, bool) or not isinstance(value, int | float):
            return [value] * len(weights)  # nothing to cut
        ends: list[int | float] = [0]
        end = 0
        for weight in weights:
            end += weight
            share = value * end / total
            ends.append(round(share) if isinstance(value, int) else share)
        return [after - before for before, after in pairwise(ends)]

    return split


@dataclass(frozen=True, slots=True)
class _Weights:
    """What each call read and wrote, in whatever unit."""

    read: list[int]
    written: list[int]


def _token_counts(turns: list[list[Item]]) -> _Weights | None:
    ends = [turn[-1] for turn in turns]
    if not all(end.get("generation_token_ids") and end.get("prompt_token_ids") for end in ends):
        return None
    return _Weights(
        [len(end["prompt_token_ids"]) for end in ends], [len(end["generation_token_ids"]) for end in ends]
    )


def _lengths(prompt: Sequence[Item], turns: list[list[Item]]) -> _Weights:
    written = [len(encoded(turn)) for turn in turns]
    before = len(encoded(prompt))
    return _Weights([before + sum(written[:turn]) for turn in range(len(turns))], written)
