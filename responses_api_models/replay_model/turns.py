"""Splits a recorded rollout into its model calls.

Invariant: the outputs of all calls together are the generated items of the rollout, in order; their usages
add up to the recorded one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from responses_api_models.replay_model.conversation_digests import (
    Item,
    contents_of,
    continued,
    encoded,
    is_generated,
    items_of,
    prompt_digest,
)

Usage = dict[str, Any]
Split = Callable[[Any], list[Any]]
"""Divides a number into one part per call; the parts add up to it."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One recorded rollout, split into its model calls."""

    key: str
    """Its key in the recorded run, for messages."""
    response: dict[str, Any]
    """The recorded response, which is that of the last call, without `output` and `usage`."""
    turns: list[list[Item]]
    usages: list[Usage | None]
    digests: list[int]
    """The digest of the conversation before each call, and after the last."""

    def turn_at(self, digest: int, runs: int) -> int | None:
        """The number of calls in a conversation with this digest; None if it is not a part of this rollout.

        A call that generated only reasoning does not change the digest; then the number nearest to `runs` is
        used.
        """
        turns = [turn for turn, known in enumerate(self.digests) if known == digest]
        return min(turns, key=lambda turn: abs(turn - runs), default=None)

    def response_of(self, turn: int) -> dict[str, Any]:
        """The model response of one call."""
        own = {"output": self.turns[turn], "usage": self.usages[turn]}
        if turn == len(self.turns) - 1:
            return {**self.response, **own}
        # Only the items of earlier calls are recorded. The agent continued after them, so they were complete.
        complete = {"status": "completed", "incomplete_details": None, "error": None}
        return {**self.response, "id": f"{self.response.get('id')}_{turn}", **complete, **own}

    def final_response(self) -> dict[str, Any]:
        """A response like that of a model whose context is full; it makes an agent end the conversation."""
        part = {"type": "output_text", "text": "", "annotations": []}
        message = {"type": "message", "role": "assistant", "status": "incomplete", "content": [part]}
        ended = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        return {**self.response, **ended, "output": [{"id": "msg_replayed", **message}], "usage": None}

    @property
    def latency_s(self) -> float | None:
        """The duration of the last call, if its response has the times; no other times are recorded."""
        return call_seconds(self.response)


def call_seconds(response: Mapping[str, Any]) -> float | None:
    began, ended = response.get("created_at"), response.get("completed_at")
    if isinstance(began, int | float) and isinstance(ended, int | float):
        return max(0.0, float(ended - began))
    return None


def rollout_from(record: Mapping[str, Any]) -> Rollout:
    """Split a line of a rollouts file, already checked, into its model calls."""
    params, response = record["responses_create_params"], dict(record["response"])
    prompt = items_of(params)
    output, usage = response.pop("output"), response.pop("usage", None)
    turns = split_calls(output)
    digests = [prompt_digest(contents_of(prompt))]
    for turn in turns:
        digests.append(continued(digests[-1], contents_of(turn)))
    key = f"{record.get('_ng_task_index')}:{record.get('_ng_rollout_index')}"
    return Rollout(key, response, turns, _divided(usage, prompt, turns), digests)


def split_calls(output: Sequence[Item]) -> list[list[Item]]:
    """The generated items by model call. A call ends before an item that is not generated, and after token
    ids."""
    turns: list[list[Item]] = []
    in_call = False
    for item in output:
        if not is_generated(item):
            in_call = False
            continue
        if not in_call:
            turns.append([])
        turns[-1].append(item)
        in_call = not item.get("generation_token_ids")
    return turns or [[]]


def _divided(usage: Any, prompt: Sequence[Item], turns: list[list[Item]]) -> list[Usage | None]:
    """The usage of each call: in proportion to its token ids if all calls have them, else to its length."""
    if not isinstance(usage, dict):
        return [None] * len(turns)
    if len(turns) == 1:
        return [usage]
    weights = _token_counts(turns) or _lengths(prompt, turns)
    of_input, of_output = _by(weights.prompt), _by(weights.output)
    parts: list[Usage] = [{} for _ in turns]
    for name, value in usage.items():
        split = of_input if name.startswith("input_") else of_output
        if isinstance(value, dict):
            _distribute(value, split, [part.setdefault(name, {}) for part in parts])
        else:
            _distribute({name: value}, split, parts)
    if usage.get("total_tokens") == (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0):
        for part in parts:
            part["total_tokens"] = (part.get("input_tokens") or 0) + (part.get("output_tokens") or 0)
    return [*parts]


def _distribute(counts: Mapping[str, Any], split: Split, parts: list[Usage]) -> None:
    """Put the share of each call in every count into its usage."""
    for name, value in counts.items():
        for part, share in zip(parts, split(value), strict=True):
            part[name] = share


def _by(weights: Sequence[int]) -> Split:
    total = sum(weights)

    def split(value: Any) -> list[Any]:
        if not value or isinstance(value, bool) or not isinstance(value, int | float):
            return [value] * len(weights)  # cannot be divided
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
    """The sizes of the prompt and the output of each call, in any unit."""

    prompt: list[int]
    output: list[int]


def _token_counts(turns: list[list[Item]]) -> _Weights | None:
    ends = [turn[-1] for turn in turns]
    if not all(end.get("generation_token_ids") and end.get("prompt_token_ids") for end in ends):
        return None
    return _Weights(
        [len(end["prompt_token_ids"]) for end in ends], [len(end["generation_token_ids"]) for end in ends]
    )


def _lengths(prompt: Sequence[Item], turns: list[list[Item]]) -> _Weights:
    outputs = [len(encoded(turn)) for turn in turns]
    before = len(encoded(prompt))
    return _Weights([before + sum(outputs[:turn]) for turn in range(len(turns))], outputs)
