"""Numbers from rollouts: pure functions on plain data."""

from nemo_gym.metrics.baseline import compute_aggregate_metrics, default_key_metrics

__all__ = ["compute_aggregate_metrics", "default_key_metrics"]
