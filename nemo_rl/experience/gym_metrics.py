"""Metrics of a prompt group on the Gym path. Plain data, as in `metrics.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nemo_rl.experience.group_metrics import pct, rate, sequence_stats, stats, turn_stats
from nemo_rl.experience.message_log import length_of

if TYPE_CHECKING:
    from nemo_rl.data.interfaces import LLMMessageLogType
    from nemo_rl.experience.interfaces import Completion


def gym_metrics(completions: Sequence[Completion], agent_name: str) -> dict[str, Any]:
    """Metrics of the members that succeeded; placeholders are not counted."""
    members = [completion for completion in completions if completion.failure is None]
    n, logs = len(members), [member.message_log for member in members]
    # There is one user message before each model call.
    turns = [sum(message["role"] == "user" for message in log) for log in logs]
    generated = [_generated(log) for log in logs]
    lengths = [length_of(log) for log in logs]
    longest = [max(tokens, default=0) for tokens in generated]
    metrics = stats([member.reward for member in members], n, "total_reward")
    metrics |= turn_stats(turns, n)
    metrics |= stats(lengths, n, "total_tokens_per_sample")
    metrics |= sequence_stats(members)
    metrics |= stats([sum(tokens) for tokens in generated], n, "gen_tokens_per_sample")
    metrics |= stats(longest, n, "max_gen_tokens_per_turn")
    metrics["max_gen_tokens_per_turn/p95"] = pct(longest, 95)
    metrics["truncation_rate"] = rate([member.truncated for member in members], n)
    metrics["natural_termination_rate"] = 1 - metrics["truncation_rate"]
    metrics["mean_gen_tokens_per_sample"] = metrics["gen_tokens_per_sample/mean"]
    return metrics | agent_metrics([member.env_extras or {} for member in members], agent_name)


def agent_metrics(full_results: Sequence[dict[str, Any]], agent_name: str) -> dict[str, Any]:
    """Statistics of every number that the first result has, and a table of all results."""
    metrics: dict[str, Any] = {}
    for key in full_results[0] if full_results else ():
        given = [full_result[key] for full_result in full_results if key in full_result]
        values = [float(value) for value in given if isinstance(value, bool | int | float)]
        if values:
            metrics |= stats(values, len(full_results), f"{agent_name}/{key}")
            metrics[f"{agent_name}/{key}/count"] = len(values)
    rows = [[json.dumps(full_result, separators=(",", ":"), default=str)] for full_result in full_results]
    metrics[f"{agent_name}/full_result"] = {"columns": ["Full result"], "data": rows}
    return metrics


def _generated(message_log: LLMMessageLogType) -> list[int]:
    """Number of generated tokens of each turn."""
    return [len(message["token_ids"]) for message in message_log if message["role"] == "assistant"]
