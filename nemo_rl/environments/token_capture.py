"""Tokens of a rollout whose items have none, rebuilt from the calls that its model server recorded.

A call follows another if its prompt begins with all that the other read and sampled; of several such calls,
it follows the longest. If the calls form one chain with one start, that chain is the rollout. Otherwise (two
starts, a branch, a retry whose used response is unknown) it is not certain what the policy saw: the longest
chain is returned for inspection, and the sample is masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

RECORDED_CALLS_KEY = "recorded_model_calls"
"""Key in a rollout: the calls of the rollout, if its items have no tokens."""


class RecordedCall(TypedDict):
    """The tokens of one call, as a model server recorded them."""

    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]


@dataclass(frozen=True)
class CapturedRollout:
    """The calls of a rollout, in order."""

    calls: list[RecordedCall]
    mask_reason: str | None
    """Why it must not be trained on; None if it may be."""

    def items(self) -> list[dict[str, Any]]:
        """Output items of a response, each with the tokens of its call."""
        part = {"type": "output_text", "text": "", "annotations": []}
        message = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        return [{**message, "id": f"call_{number}", **call} for number, call in enumerate(self.calls)]


def with_captured_tokens(full_result: dict[str, Any]) -> dict[str, Any]:
    """The rollout with its output rebuilt from its recorded calls; masked if they are not one chain."""
    captured = rebuilt(full_result[RECORDED_CALLS_KEY])
    rest = {key: value for key, value in full_result.items() if key != RECORDED_CALLS_KEY}
    rest["response"] = {**full_result["response"], "output": captured.items()}
    if captured.mask_reason is not None:
        rest |= {"mask_sample": True, "mask_sample_reason": captured.mask_reason}
    return rest


def rebuilt(calls: Sequence[RecordedCall]) -> CapturedRollout:
    """The rollout that these calls, in any order, belong to."""
    known = _without_repeats(call for call in calls if call["generation_token_ids"])
    parents = [_parent(call, known) for call in known]
    children: dict[int, list[int]] = {}
    for number, parent in enumerate(parents):
        if parent is not None:
            children.setdefault(parent, []).append(number)
    used = _without_unused_retries(known, parents, children)
    chain = _longest_chain(used, known, parents)
    roots = [number for number in used if parents[number] is None]
    reason = None
    if len(roots) > 1:
        reason = f"its calls start {len(roots)} conversations"
    elif len(chain) < len(used):
        reason = "its calls branch: two of them continue the same one"
    return CapturedRollout([known[number] for number in chain], reason)


def _without_repeats(calls: Any) -> list[RecordedCall]:
    """Each call once, also if it was recorded twice."""
    unique: dict[tuple[tuple[int, ...], tuple[int, ...]], RecordedCall] = {}
    for call in calls:
        unique.setdefault((tuple(call["prompt_token_ids"]), tuple(call["generation_token_ids"])), call)
    return list(unique.values())


def _parent(call: RecordedCall, calls: list[RecordedCall]) -> int | None:
    """The number of the call whose tokens are the longest prefix of this prompt."""
    prompt, best, longest = call["prompt_token_ids"], None, 0
    for number, other in enumerate(calls):
        length = len(other["prompt_token_ids"]) + len(other["generation_token_ids"])
        if other is call or not longest < length <= len(prompt):
            continue
        if prompt[:length] == other["prompt_token_ids"] + other["generation_token_ids"]:
            best, longest = number, length
    return best


def _without_unused_retries(
    calls: list[RecordedCall], parents: list[int | None], children: dict[int, list[int]]
) -> list[int]:
    """Of calls with the same prompt, the one that was continued; all of them if that is not known."""
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for number, call in enumerate(calls):
        by_prompt.setdefault(tuple(call["prompt_token_ids"]), []).append(number)
    used: list[int] = []
    for tries in by_prompt.values():
        continued = [number for number in tries if number in children]
        used += continued if len(continued) == 1 else tries
    return sorted(used)


def _longest_chain(used: list[int], calls: list[RecordedCall], parents: list[int | None]) -> list[int]:
    if not used:
        return []

    def length(number: int) -> int:
        return len(calls[number]["prompt_token_ids"]) + len(calls[number]["generation_token_ids"])

    chain, link = [], max(used, key=length)
    while True:
        chain.append(link)
        parent = parents[link]
        if parent is None:
            return chain[::-1]
        link = parent
