"""Checks the parameters of a request and translates them into those of the engine.

The engine silently accepts a negative temperature or a misspelt name; here each is an error.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

UNFILTERED = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
"""Sampling from the model's own distribution. The engine's defaults would exclude unlikely tokens."""

MAX_TOP_LOG_PROBS = 20
_MAX_TOKENS = 2**31 - 1
"""A larger number overflows in the engine."""
_SEEDS = 2**32 - 1
"""The number of seeds: the engine replaces the next number, 2**32 - 1, with a random seed."""

_SUPPORTED = {
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "n",
    "logprobs",
} | {
    "top_logprobs",
    "chat_template_kwargs",
    "stop",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "logit_bias",
}
_WITHOUT_EFFECT = {"model", "stream", "stream_options", "metadata", "user", "store", "service_tier"} | {
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "verbosity",
}
"""Fields of the API that have no meaning for a model on this machine."""


class BadParameterError(ValueError):
    """A parameter that cannot be used; the message says which and why."""


@dataclass(frozen=True)
class Sampling:
    """The parameters of one generation."""

    parameters: dict[str, Any]
    """With the engine's names."""
    top_log_probs: int | None
    """The number that the request asks for; None if it asks for no log-probabilities."""
    template_kwargs: dict[str, Any] = field(default_factory=dict)


def sampling_of(request: Mapping[str, Any], vocabulary: int) -> Sampling:
    """The parameters of a Chat Completions request; `vocabulary` is the number of tokens."""
    given = {name: value for name, value in request.items() if value is not None}
    _reject_unknown(given)
    if given.get("n", 1) != 1:
        raise BadParameterError("n: must be 1; send the request n times")
    parameters: dict[str, Any] = dict(UNFILTERED)
    for name, (engine_name, check) in _NUMBERS.items():
        if name in given:
            parameters[engine_name] = _checked(name, given[name], check)
    for name in ("max_tokens", "max_completion_tokens"):
        if name in given:
            parameters["n_predict"] = min(_whole(name, given[name], minimum=1), _MAX_TOKENS)
    if "seed" in given:
        parameters["seed"] = _whole("seed", given["seed"]) % _SEEDS
    if "stop" in given:
        parameters["stop"] = _stop_strings(given["stop"])
    if "logit_bias" in given:
        parameters["logit_bias"] = _biases(given["logit_bias"], vocabulary)
    kwargs = given.get("chat_template_kwargs", {})
    if not isinstance(kwargs, dict):
        raise BadParameterError("chat_template_kwargs: must be an object")
    return Sampling(parameters, _top_log_probs(given), kwargs)


def _reject_unknown(given: Mapping[str, Any]) -> None:
    known = {*_NUMBERS, *_SUPPORTED, *_WITHOUT_EFFECT}
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise BadParameterError(f"{name}: local_model does not support this parameter{hint}")


def _in_range(low: float, high: float) -> Callable[[float], str | None]:
    def problem(value: float) -> str | None:
        return None if low <= value <= high else f"must be between {low:g} and {high:g}"

    return problem


def _at_least(low: float) -> Callable[[float], str | None]:
    return lambda value: None if value >= low else f"must be {low:g} or more"


def _share(value: float) -> str | None:
    return None if 0 < value <= 1 else "must be more than 0 and at most 1"


def _top_k(value: float) -> str | None:
    return None if value >= -1 and value == int(value) else "must be a whole number; 0 or -1 means all tokens"


def _above_zero(value: float) -> str | None:
    return None if value > 0 else "must be more than 0"


_NUMBERS: dict[str, tuple[str, Callable[[float], str | None]]] = {
    "temperature": ("temperature", _at_least(0)),
    "top_p": ("top_p", _share),
    "top_k": ("top_k", _top_k),
    "min_p": ("min_p", _in_range(0, 1)),
    "presence_penalty": ("presence_penalty", _in_range(-2, 2)),
    "frequency_penalty": ("frequency_penalty", _in_range(-2, 2)),
    "repetition_penalty": ("repeat_penalty", _above_zero),
}


def _checked(name: str, value: object, check: Callable[[float], str | None]) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadParameterError(f"{name}: must be a number, not {_shown(value)}")
    problem = check(value)
    if problem:
        raise BadParameterError(f"{name}: {problem}, not {value:g}")
    return value


def _whole(name: str, value: object, minimum: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadParameterError(f"{name}: must be a whole number, not {_shown(value)}")
    if minimum is not None and value < minimum:
        raise BadParameterError(f"{name}: must be {minimum} or more, not {value}")
    return value


def _stop_strings(value: object) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise BadParameterError("stop: must be a string or a list of strings, none of them empty")
    return texts


def _biases(value: object, vocabulary: int) -> list[list[float]]:
    if not isinstance(value, dict) or not all(
        str(token).isdecimal() and int(token) < vocabulary for token in value
    ):
        raise BadParameterError(f"logit_bias: must be an object whose keys are token ids below {vocabulary}")
    return [
        [int(token), _checked(f"logit_bias.{token}", bias, _in_range(-100, 100))]
        for token, bias in value.items()
    ]


def _top_log_probs(given: Mapping[str, Any]) -> int | None:
    count = _whole("top_logprobs", given.get("top_logprobs", 0))
    if not 0 <= count <= MAX_TOP_LOG_PROBS:
        raise BadParameterError(f"top_logprobs: must be between 0 and {MAX_TOP_LOG_PROBS}, not {count}")
    is_requested = given.get("logprobs", False)
    if not isinstance(is_requested, bool):
        raise BadParameterError("logprobs: must be true or false")
    if count and not is_requested:
        raise BadParameterError("top_logprobs: also set logprobs: true")
    return count if is_requested else None


def _shown(value: object) -> str:
    return json.dumps(value, default=str)[:100]
