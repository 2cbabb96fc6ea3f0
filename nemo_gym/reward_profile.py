"""Published names of the metrics."""

from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.metrics import compute_aggregate_metrics

__all__ = ["AggregateMetrics", "AggregateMetricsRequest", "compute_aggregate_metrics"]
