"""The metrics of one agent's rollouts: statistics of every numeric field, and an environment's own."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nemo_gym.config_types import AggregateMetrics
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
    """The metrics of one agent's rollouts, an environment's own among them."""
    if not verify_responses:
        return AggregateMetrics()
    columns = measured(verify_responses)
    agent_metrics: dict[str, Any] = columns.metrics()
    groups = {group[TASK_INDEX_KEY_NAME]: group for group in columns.groups()}
    own_metrics = dict(compute_metrics_fn(group_by_task(verify_responses))) if compute_metrics_fn else {}
    for task_metrics in own_metrics.pop("per_task_metrics", None) or []:
        groups.setdefault(task_metrics[TASK_INDEX_KEY_NAME], {}).update(task_metrics)
    for name in own_metrics:
        for error in ERRORS:  # how sure the replaced one was says nothing about this one
            agent_metrics.pop(f"{name}/{error}", None)
    agent_metrics |= own_metrics
    pick = get_key_metrics_fn or default_key_metrics
    return AggregateMetrics(
        agent_metrics=agent_metrics,
        key_metrics=pick(agent_metrics),
        group_level_metrics=[groups[index] for index in sorted(groups)],
    )


def default_key_metrics(agent_metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The means, with how sure they are."""
    return {name: value for name, value in agent_metrics.items() if name.startswith("mean/")}


def measured(rollouts: Iterable[dict[str, Any]]) -> Columns:
    """The numbers of rollouts; one without a task index is of task 0."""
    intake = Intake(Columns())
    for rollout in rollouts:
        intake.take(rollout.get(TASK_INDEX_KEY_NAME, 0), rollout.get(ROLLOUT_INDEX_KEY_NAME, 0), rollout)
    return intake.columns


def group_by_task(rollouts: Iterable[dict[str, Any]]) -> Tasks:
    """Rollouts by task, tasks in index order, each task's rollouts in theirs."""
    tasks: dict[int, list[dict[str, Any]]] = {}
    for rollout in rollouts:
        tasks.setdefault(rollout.get(TASK_INDEX_KEY_NAME, 0), []).append(rollout)
    for members in tasks.values():
        members.sort(key=lambda rollout: rollout.get(ROLLOUT_INDEX_KEY_NAME, 0))
    return [tasks[index] for index in sorted(tasks)]
