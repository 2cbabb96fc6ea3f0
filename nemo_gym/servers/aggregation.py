"""The metrics hooks that agents and resources servers share."""

from typing import Any

from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.metrics import compute_aggregate_metrics, default_key_metrics


class AggregatesMetrics:
    """Answers POST /aggregate_metrics; environments override the two hooks."""

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Metrics of the environment's own, from the rollouts grouped by task."""
        return {}

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """The few that people look at first."""
        return default_key_metrics(agent_metrics)

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return compute_aggregate_metrics(body.verify_responses, self.compute_metrics, self.get_key_metrics)
