"""Published names of the metrics. Re-exports only."""

from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.metrics import (
    add_avg_sample_std_dev,
    compute_aggregate_metrics,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    highest_k_metrics,
)
from nemo_gym.metrics.profile import RewardProfileConfig, RewardProfiler, profile_completion_summary

__all__ = [
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "RewardProfileConfig",
    "RewardProfiler",
    "add_avg_sample_std_dev",
    "compute_aggregate_metrics",
    "compute_pass_majority_metrics",
    "compute_subset_metrics",
    "highest_k_metrics",
    "profile_completion_summary",
]
