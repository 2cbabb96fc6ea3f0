"""The metrics hooks that agents and resources servers share.

`nemo_gym.metrics` is imported when a server first computes metrics, which most never do: start-up is faster.
"""

from typing import Any

from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest

_HOOKS = frozenset({"compute_metrics", "get_key_metrics", "aggregate_metrics"})


class AggregatesMetrics:
    """Serves `/aggregate_metrics`. Environments override `compute_metrics` and `get_key_metrics`."""

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """The environment's own metrics, from the rollouts grouped by task."""
        return {}

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """The most important metrics, shown first in reports."""
        from nemo_gym.metrics import default_key_metrics

        return default_key_metrics(agent_metrics)

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        from nemo_gym.metrics import compute_aggregate_metrics

        return compute_aggregate_metrics(body.verify_responses, self.compute_metrics, self.get_key_metrics)

    async def has_own_metrics(self) -> bool:
        """Whether the server has its own metrics; overridden by a class that forwards to another server."""
        return False

    async def report_own_metrics(self) -> dict[str, bool]:
        """The response to GET. If `own` is false, the caller need not send rollouts."""
        for cls in type(self).__mro__:
            if "has_own_metrics" in vars(cls):
                break
            if not _HOOKS.isdisjoint(vars(cls)):
                return {"own": True}
        return {"own": await self.has_own_metrics()}
