"""Metrics of rollouts: pure functions on plain data."""

from nemo_gym.metrics.baseline import columns_of, compute_aggregate_metrics, default_key_metrics
from nemo_gym.metrics.columns import Columns, GroupTable
from nemo_gym.metrics.intake import Intake
from nemo_gym.metrics.numeric_fields import numeric_fields
from nemo_gym.metrics.pass_at_k import (
    add_avg_sample_std_dev,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    highest_k_metrics,
)
from nemo_gym.metrics.summary import Summary, summarize
from nemo_gym.metrics.tool_use import tool_use_fields

__all__ = [
    "Columns",
    "GroupTable",
    "Intake",
    "Summary",
    "add_avg_sample_std_dev",
    "columns_of",
    "compute_aggregate_metrics",
    "compute_pass_majority_metrics",
    "compute_subset_metrics",
    "default_key_metrics",
    "highest_k_metrics",
    "numeric_fields",
    "summarize",
    "tool_use_fields",
]
