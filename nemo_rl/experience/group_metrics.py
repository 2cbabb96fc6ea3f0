"""Metrics of a prompt group. Plain data; loggers convert it to their own histograms and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nemo_rl.experience.message_log import length_of

if TYPE_CHECKING:
    from nemo_rl.experience.interfaces import Completion


def stats(values: Sequence[float], n: int, key: str) -> dict[str, Any]:
    """Statistics of one number per member. The mean divides by `n`, also if some members lack the number."""
    ordered = sorted(values)
    return {
        f"{key}/mean": rate(values, n),
        f"{key}/max": ordered[-1] if ordered else math.nan,
        f"{key}/min": ordered[0] if ordered else math.nan,
        f"{key}/median": _median(ordered),
        f"{key}/stddev": stddev(values),
        f"{key}/histogram": {"values": list(values)},
    }


def pct(values: Sequence[float], p: float) -> float:
    """The `p`-th percentile, without interpolation; 0 if there are no values."""
    if not values:
        return 0.0
    return float(sorted(values)[min(int(len(values) * p / 100), len(values) - 1)])


def stddev(values: Sequence[float]) -> float:
    """Sample standard deviation; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum([(value - mean) ** 2 for value in values]) / (len(values) - 1))


def _median(ordered: Sequence[float]) -> float:
    if not ordered:
        return math.nan
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def native_metrics(completions: Sequence[Completion], samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Metrics of a group on the native path; `samples` has the metrics of each trajectory."""
    n = len(completions)
    turns = [sample["turn_count"] for sample in samples]
    longest = [max(sample["turn_gen_tokens"], default=0) for sample in samples]
    metrics = stats([completion.reward for completion in completions], n, "total_reward")
    metrics["total_turns"] = sum(turns)
    metrics |= turn_stats(turns, n)
    for kind, field in (("total", "total_tokens"), ("gen", "assistant_tokens"), ("env", "env_tokens")):
        metrics |= stats([sample[field] for sample in samples], n, f"{kind}_tokens_per_sample")
    metrics |= sequence_stats(completions)
    metrics |= {
        "max_gen_tokens_per_turn/max": max(longest, default=0),
        "max_gen_tokens_per_turn/mean": rate(longest, n),
        "max_gen_tokens_per_turn/p95": pct(longest, 95),
        "truncation_rate": rate([completion.truncated for completion in completions], n),
        "natural_termination_rate": rate([sample["terminated"] for sample in samples], n),
        "max_turns_reached_rate": rate([sample["max_turns_reached"] for sample in samples], n),
        "turn_limit_stop_rate": rate(
            [
                sample["max_turns_reached"] and not sample["terminated"] and not completion.truncated
                for completion, sample in zip(completions, samples, strict=True)
            ],
            n,
        ),
        "per_worker_token_counts": _merged([sample["per_worker_token_counts"] for sample in samples]),
    }
    for kind in ("gen", "input", "total"):
        lengths = [length for sample in samples for length in sample[f"turn_{kind}_tokens"]]
        metrics[f"histogram/{kind}_tokens_length"] = lengths
    metrics["mean_gen_tokens_per_sample"] = metrics["gen_tokens_per_sample/mean"]
    return metrics


def turn_stats(turns: Sequence[int], n: int) -> dict[str, Any]:
    """Statistics of the number of turns per member."""
    tails = {f"turns_per_sample/p{p}": pct(turns, p) for p in (95, 99)}
    return stats(turns, n, "turns_per_sample") | tails


def sequence_stats(completions: Sequence[Completion]) -> dict[str, Any]:
    """Statistics of the tokens per member, prompt included. Computed in the same way on both paths."""
    lengths = [length_of(completion.message_log) for completion in completions]
    return stats(lengths, len(lengths), "sequence_tokens_per_sample")


def rate(values: Sequence[float], n: int) -> float:
    """The sum divided by the `n` members; NaN if there are none."""
    return sum(values) / n if n else math.nan


def _merged(counts: Sequence[Mapping[Any, int]]) -> dict[Any, int]:
    merged: dict[Any, int] = {}
    for one in counts:
        for worker, tokens in one.items():
            merged[worker] = merged.get(worker, 0) + tokens
    return merged
