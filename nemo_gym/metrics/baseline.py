"""Statistics of every numeric field of a set of rollouts, over all of them and for each task.

Invariant: a value that is missing, NaN or infinite is left out; no such value reaches a result, nor does a
statistic that no float can hold. The order of the rollouts changes no digit.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from operator import mul
from typing import Any, NamedTuple

from nemo_gym.config_types import AggregateMetrics
from nemo_gym.types import RESPONSE_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

Rollout = Mapping[str, Any]
Tasks = list[list[dict[str, Any]]]

# As tuples: a plain dict is told at once, and these are asked for every field of every rollout.
_NUMBER = (float, int)
_OBJECT = (dict, Mapping)


def compute_aggregate_metrics(
    verify_responses: list[dict[str, Any]],
    compute_metrics_fn: Callable[[Tasks], dict[str, Any]] | None = None,
    get_key_metrics_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> AggregateMetrics:
    """The metrics of one agent's rollouts, an environment's own among them."""
    if not verify_responses:
        return AggregateMetrics()
    tasks = group_by_task(verify_responses)
    agent_metrics: dict[str, Any] = dict(field_statistics(verify_responses))
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
    results: dict[str, float] = {}
    for name, values in columns.items():
        put_statistics(results, Labels.of(name), values)
    return results


def numeric_fields(rollout: Rollout) -> dict[str, float]:
    """A rollout's own numbers and its token usage; keys that begin with `_ng_` are not among them."""
    numbers: dict[str, float] = {}
    response = rollout.get(RESPONSE_KEY_NAME)
    usage = response.get("usage") if isinstance(response, _OBJECT) else None
    if isinstance(usage, _OBJECT):
        _put_numbers(numbers, usage)
    _put_numbers(numbers, rollout)
    return numbers


def _put_numbers(numbers: dict[str, float], fields: Mapping[str, Any]) -> None:
    """Add the fields that are finite numbers; a field that is none hides what has its name already."""
    for name, value in fields.items():
        if isinstance(value, _NUMBER):
            if name.startswith("_ng_"):
                continue
            try:
                number = float(value)
            except OverflowError:  # a whole number beyond every float
                number = math.inf
            if number - number == 0.0:
                numbers[name] = number
                continue
        numbers.pop(name, None)


class Labels(NamedTuple):
    """What the statistics of one field are called, in the order they stand in."""

    mean: str
    max: str
    min: str
    median: str
    std: str

    @classmethod
    def of(cls, name: str) -> "Labels":
        return cls(*[f"{label}/{name}" for label in cls._fields])


def put_statistics(results: dict[str, float], labels: Labels, values: list[float]) -> None:
    """Add the statistics of finite values, of which there is at least one. Uses the list up."""
    if len(values) > 1:
        values.sort()
    low, high = values[0], values[-1]
    if low == high:  # one value, or the same every time
        mean, largest, smallest, median, std = labels
        results[mean] = results[largest] = results[smallest] = results[median] = low
        results[std] = 0.0
        return
    half, is_odd = divmod(len(values), 2)
    middle = values[half] if is_odd else (values[half - 1] + values[half]) / 2
    average = _mean(values)
    for label, value in zip(labels, (average, high, low, middle, _std(values, average)), strict=True):
        if math.isfinite(value):
            results[label] = value


def _mean(values: list[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.inf


def _std(values: list[float], mean: float) -> float:
    """Of sorted values that differ; they become their deviations, so that a long list needs no second one."""
    count, unit = len(values), values[-1] - values[0]  # in units of the range no square is too large or small
    for place, value in enumerate(values):
        values[place] = (value - mean) / unit
    lost = math.fsum(values)  # what rounding took from the mean
    squares = math.fsum(map(mul, values, values)) - lost * lost / count
    return unit * math.sqrt(max(0.0, squares) / (count - 1))
