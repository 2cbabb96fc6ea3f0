"""From a rollout of an agent to a message log of tokens.

Invariant: the tokens of the log, in order, are what the policy read and sampled in this rollout; a rollout
for which this is not certain is refused. The input is not changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nemo_rl.environments.token_capture import RECORDED_CALLS_KEY, with_captured_tokens
from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Item = dict[str, Any]
GymResult = dict[str, Any]
"""`message_log`, `input_message_log` (its first message) and `full_result`, the rollout without token ids."""

_PROMPT, _GENERATION, _LOG_PROBS = "prompt_token_ids", "generation_token_ids", "generation_log_probs"


class Decoder(Protocol):
    """The part of a tokenizer that is used here."""

    def decode(self, token_ids: list[int], /) -> str: ...


@dataclass(frozen=True)
class OutputMarkers:
    """Tags that the model server removes when it parses a generation; one that is left was not parsed."""

    tool_call: tuple[str, ...] = ("<tool_call>", "</tool_call>", "<function_call>", "</function_call>")
    thinking: tuple[str, ...] = ("<think>", "</think>")
    """Each may occur once in a reasoning item."""


_DEFAULT_MARKERS = OutputMarkers()


def gym_result(full_result: Any, tokenizer: Decoder, markers: OutputMarkers = _DEFAULT_MARKERS) -> GymResult:
    """A message log: what the policy read as `user` messages, what it sampled as `assistant` messages.

    AssertionError if the prompt of a model call does not begin with the tokens before it, ValueError if
    nothing was sampled, RuntimeError if a log-probability is NaN.
    """
    if not isinstance(full_result, dict):
        raise AssertionError(f"the agent's response is not a JSON object but {type(full_result).__name__}")
    if full_result.get(RECORDED_CALLS_KEY) and not any(map(has_tokens, full_result["response"]["output"])):
        full_result = with_captured_tokens(full_result)
    message_log: list[dict[str, Any]] = []
    seen: list[int] = []
    output: list[Any] = []
    for position, item in enumerate(full_result["response"]["output"]):
        if not has_tokens(item):
            output.append(item)
            continue
        prompt, generation = _token_ids(item, position, seen)
        message_log.append(_read(prompt[len(seen) :]))
        message_log.append(_sampled(item, position, markers))
        seen = prompt + generation
        output.append(_as_text(item, prompt, generation, tokenizer))
    if not message_log:
        raise ValueError(_nothing_sampled(full_result))
    return {
        "message_log": message_log,
        "input_message_log": message_log[:1],
        "full_result": {**full_result, "response": {**full_result["response"], "output": output}},
    }


def has_tokens(item: Any) -> bool:
    """Whether an item has the tokens of a model call that sampled at least one."""
    return isinstance(item, dict) and bool(item.get(_GENERATION))


def _token_ids(item: Item, position: int, seen: list[int]) -> tuple[list[int], list[int]]:
    """Prompt and generation of a model call; the prompt must begin with the tokens seen before."""
    prompt, generation = item.get(_PROMPT), item[_GENERATION]
    if prompt is None:
        raise AssertionError(f"item {position} of the output has {_GENERATION} but no {_PROMPT}")
    prompt, generation = list(prompt), list(generation)
    if prompt[: len(seen)] != seen:
        pairs = zip(prompt, seen, strict=False)
        differs = next((at for at, (new, old) in enumerate(pairs) if new != old), len(prompt))
        raise AssertionError(
            f"non-contiguous history: the prompt of item {position} of the output differs from the "
            f"{len(seen)} tokens before it at token {differs}; the model server must replay token ids, and "
            "the agent must not drop history or strip reasoning"
        )
    return prompt, generation


def _read(token_ids: list[int]) -> dict[str, Any]:
    """What the policy read: system, user and tool texts."""
    return {"role": "user", "content": "", "token_ids": torch.tensor(token_ids, dtype=torch.int64)}


def _sampled(item: Item, position: int, markers: OutputMarkers) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "token_ids": torch.tensor(list(item[_GENERATION]), dtype=torch.int64),
        "generation_logprobs": _log_probs(item, position),
        **_flags(item, markers),
    }


def _log_probs(item: Item, position: int) -> torch.Tensor:
    values: list[float] = item.get(_LOG_PROBS) or []
    if len(values) != len(item[_GENERATION]):
        raise AssertionError(
            f"item {position} of the output has {len(item[_GENERATION])} sampled tokens and {len(values)} "
            "log-probabilities"
        )
    if None in values or math.isnan(sum(values)):  # JSON has no NaN: some writers write null
        raise RuntimeError(f"item {position} of the output has NaN among its {_LOG_PROBS}")
    return torch.tensor(values, dtype=torch.float32)


def _flags(item: Item, markers: OutputMarkers) -> dict[str, bool]:
    """Whether tags of a tool call or of thinking were left in the text."""
    text, tags_allowed = "", 0
    if item.get("type") == "message":
        text = _first_text(item.get("content"))
    elif item.get("type") == "reasoning":
        text, tags_allowed = _first_text(item.get("summary")), 1
    return {
        "is_invalid_tool_call": any(marker in text for marker in markers.tool_call),
        "has_malformed_thinking": any(text.count(tag) > tags_allowed for tag in markers.thinking),
    }


def _first_text(parts: Any) -> str:
    if isinstance(parts, str):
        return parts
    first = parts[0] if parts else None
    text = first.get("text") if isinstance(first, dict) else None
    return text if isinstance(text, str) else ""


def _as_text(item: Item, prompt: list[int], generation: list[int], tokenizer: Decoder) -> Item:
    kept = {key: value for key, value in item.items() if key not in (_PROMPT, _GENERATION, _LOG_PROBS)}
    return {**kept, "prompt_str": tokenizer.decode(prompt), "generation_str": tokenizer.decode(generation)}


def _nothing_sampled(full_result: dict[str, Any]) -> str:
    output = full_result["response"]["output"]
    kinds = [item.get("type", "?") if isinstance(item, dict) else type(item).__name__ for item in output]
    return (
        f"no generation data: the prompt has {_prompt_length(full_result)}, and the output items "
        f"({', '.join(kinds) or 'none'}) have no token ids; set return_token_id_information: true on the "
        "model server, and make sure that the prompt leaves room to generate"
    )


def _prompt_length(full_result: dict[str, Any]) -> str:
    """In tokens, if a model server recorded them."""
    for item in full_result["response"]["output"]:
        if isinstance(item, dict) and item.get(_PROMPT):
            return f"{len(item[_PROMPT])} tokens"
    given = (full_result.get("responses_create_params") or {}).get("input") or ()
    return f"{len(given)} {'characters' if isinstance(given, str) else 'items'}"
