"""Statistics of every numeric field of a set of rollouts, over all of them and for each task.

Invariant: a value that is missing, NaN or infinite is left out; no such value reaches a result, nor does a
statistic that no float can hold.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nemo_gym.config_types import AggregateMetrics
from nemo_gym.types import RESPONSE_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

Rollout = Mapping[str, Any]
Tasks = list[list[dict[str, Any]]]


def compute_aggregate_metrics(
    verify_responses: list[dict[str, Any]],
    compute_metrics_fn: Callable[[Tasks], dict[str, Any]] | None = None,
    get_key_metrics_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> AggregateMetrics:
    """The metrics of one agent's rollouts, an environment's own among them."""
    if not verify_responses:
        return AggregateMetrics()
    tasks = group_by_task(verify_responses)
    agent_metrics = field_statistics(verify_responses)
    groups = {
        index: {TASK_INDEX_KEY_NAME: index, **field_statistics(rollouts)} for index, rollouts in tasks.items()
    }
    own_metrics = dict(compute_metrics_fn(list(tasks.values()))) if compute_metrics_fn else {}
    for task_metrics in own_metrics.pop("per_task_metrics", None) or []:
        groups.setdefault(task_metrics[TASK_INDEX_KEY_NAME], {}).update(task_metrics)
    agent_metrics |= own_metrics
    pick = get_key_metrics_fn or default_key_metrics
    return AggregateMetrics(
        agent_metrics=agent_metrics,
        key_metrics=pick(agent_metrics),
        group_level_metrics=[groups[index] for index in sorted(groups)],
    )


def default_key_metrics(agent_metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The means."""
    return {name: value for name, value in agent_metrics.items() if name.startswith("mean/")}


def group_by_task(rollouts: Iterable[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Rollouts by task, tasks in index order, each task's rollouts in theirs."""
    tasks: dict[int, list[dict[str, Any]]] = {}
    for rollout in rollouts:
        tasks.setdefault(rollout.get(TASK_INDEX_KEY_NAME, 0), []).append(rollout)
    for members in tasks.values():
        members.sort(key=lambda rollout: rollout.get(ROLLOUT_INDEX_KEY_NAME, 0))
    return dict(sorted(tasks.items()))


def field_statistics(rollouts: Iterable[Rollout]) -> dict[str, float]:
    """`mean/`, `max/`, `min/`, `median/` and `std/` of every numeric field."""
    columns: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, value in numeric_fields(rollout).items():
            columns.setdefault(name, []).append(value)
    results = {
        f"{label}/{name}": _finite(function, values)
        for name, values in columns.items()
        for label, function in _STATISTICS.items()
    }
    return {name: value for name, value in results.items() if value is not None}


def numeric_fields(rollout: Rollout) -> dict[str, float]:
    """A rollout's own numbers and its token usage; keys that begin with `_ng_` are not among them."""
    response = rollout.get(RESPONSE_KEY_NAME)
    usage = response.get("usage") if isinstance(response, Mapping) else None
    fields = {**(usage if isinstance(usage, Mapping) else {}), **rollout}
    numbers = {
        name: _finite(float, value)
        for name, value in fields.items()
        if isinstance(value, int | float) and not name.startswith("_ng_")
    }
    return {name: number for name, number in numbers.items() if number is not None}


def _finite(function: Callable[[Any], float], value: Any) -> float | None:
    """The function's result; None where it is no number that a float can hold."""
    try:
        result = function(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def _std(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


_STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "mean": statistics.fmean,
    "max": max,
    "min": min,
    "median": statistics.median,
    "std": _std,
}
