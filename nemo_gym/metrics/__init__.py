"""Numbers from rollouts: pure functions on plain data."""

from nemo_gym.metrics.baseline import compute_aggregate_metrics, default_key_metrics, numeric_fields
from nemo_gym.metrics.columns import Columns

__all__ = ["Columns", "compute_aggregate_metrics", "default_key_metrics", "numeric_fields"]
