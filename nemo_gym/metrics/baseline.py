"""The metrics of one agent's rollouts: statistics of every numeric field, and those of the environment."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import itemgetter
from typing import Any

from nemo_gym.config_types import AggregateMetrics
from nemo_gym.errors import InputError
from nemo_gym.metrics.columns import Columns
from nemo_gym.metrics.intake import Intake
from nemo_gym.metrics.uncertainty import ERRORS
from nemo_gym.types import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

Tasks = list[list[dict[str, Any]]]


def compute_aggregate_metrics(
    verify_responses: list[dict[str, Any]],
    compute_metrics_fn: Callable[[Tasks], dict[str, Any]] | None = None,
    get_key_metrics_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> AggregateMetrics:
    """The metrics of one agent's rollouts, including those that the environment computes."""
    if not verify_responses:
        return AggregateMetrics()
    columns = columns_of(verify_responses)
    agent_metrics: dict[str, Any] = columns.metrics()
    groups = {group[TASK_INDEX_KEY_NAME]: group for group in columns.groups()}
    own_metrics = dict(compute_metrics_fn(group_by_task(verify_responses))) if compute_metrics_fn else {}
    for task_metrics in own_metrics.pop("per_task_metrics", None) or []:
        index = _index(task_metrics, TASK_INDEX_KEY_NAME, "per_task_metrics of compute_metrics", default=None)
        groups.setdefault(index, {}).update(_as_json(task_metrics))
    for name in own_metrics:
        for error in ERRORS:  # the uncertainty of the replaced metric does not apply to this one
            agent_metrics.pop(f"{name}/{error}", None)
    agent_metrics |= _as_json(own_metrics)
    pick = get_key_metrics_fn or default_key_metrics
    return AggregateMetrics(
        agent_metrics=agent_metrics,
        key_metrics=_as_json(pick(agent_metrics)),
        group_level_metrics=[groups[index] for index in sorted(groups)],
    )


def _as_json(value: Any) -> Any:
    """A metric of an environment as JSON data: numpy values as Python numbers, None for NaN and infinity."""
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _as_json(item) for name, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, list | tuple | set) else value


def default_key_metrics(agent_metrics: Mapping[str, Any], copied: Collection[str] = ()) -> dict[str, Any]:
    """The means, with their uncertainty, except those of fields that are `copied` from the rows."""
    left_out = {
        name for field in copied for name in (f"mean/{field}", *(f"mean/{field}/{error}" for error in ERRORS))
    }
    return {
        name: value
        for name, value in agent_metrics.items()
        if name.startswith("mean/") and name not in left_out
    }


def columns_of(rollouts: Iterable[dict[str, Any]]) -> Columns:
    """The numbers of rollouts. A rollout without a task index belongs to task 0."""
    intake = Intake(Columns())
    for place, rollout in enumerate(rollouts):
        intake.take(*_key(rollout, place), rollout)
    return intake.columns


def _key(rollout: Mapping[str, Any], place: int) -> tuple[int, int]:
    where = f"rollout {place} (counted from 0)"
    return _index(rollout, TASK_INDEX_KEY_NAME, where), _index(rollout, ROLLOUT_INDEX_KEY_NAME, where)


def _index(record: Mapping[str, Any], name: str, where: str, default: int | None = 0) -> int:
    value = record.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise InputError(f"{where}: {name} is {value!r}; it must be a whole number")
    return value


def group_by_task(rollouts: Iterable[dict[str, Any]]) -> Tasks:
    """The rollouts of each task: tasks by task index, rollouts by rollout index."""
    tasks: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for place, rollout in enumerate(rollouts):
        task, index = _key(rollout, place)
        tasks.setdefault(task, []).append((index, rollout))
    for members in tasks.values():
        members.sort(key=itemgetter(0))
    return [[rollout for _, rollout in tasks[index]] for index in sorted(tasks)]
