"""The metrics hooks that agents and resources servers share."""

from typing import Any

from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.metrics import compute_aggregate_metrics, default_key_metrics

_HOOKS = frozenset({"compute_metrics", "get_key_metrics", "aggregate_metrics"})


class AggregatesMetrics:
    """Answers /aggregate_metrics; environments override the first two hooks."""

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Metrics of the environment's own, from the rollouts grouped by task."""
        return {}

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """The few that people look at first."""
        return default_key_metrics(agent_metrics)

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return compute_aggregate_metrics(body.verify_responses, self.compute_metrics, self.get_key_metrics)

    async def has_own_metrics(self) -> bool:
        """Whether there is more than the default metrics; for a class that leaves them to another server."""
        return False

    async def tell_own_metrics(self) -> dict[str, bool]:
        """The answer to GET: whoever can do with the default metrics need not send every rollout here."""
        for cls in type(self).__mro__:
            if "has_own_metrics" in vars(cls):
                break
            if not _HOOKS.isdisjoint(vars(cls)):
                return {"own": True}
        return {"own": await self.has_own_metrics()}
