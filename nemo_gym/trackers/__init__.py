"""Experiment trackers: send the metrics of a finished run, and optionally its rollouts, to W&B and MLflow.

Both are optional packages. If a tracker fails there is a warning; the run itself is not affected.
"""

from nemo_gym.trackers.publish import TimeLimit, publish, warn_early
from nemo_gym.trackers.tracker import AgentFigures, TrackedRun
from nemo_gym.trackers.tracker_config import TrackerConfig

__all__ = ["AgentFigures", "TimeLimit", "TrackedRun", "TrackerConfig", "publish", "warn_early"]
