"""Experiment trackers: after a run its metrics, and its rollouts if wanted, go to W&B and MLflow.

Both are optional packages. A tracker that is down is a warning, never a lost run.
"""

from nemo_gym.trackers.publish import TimeLimit, publish, warn_early
from nemo_gym.trackers.tracker import AgentFigures, TrackedRun
from nemo_gym.trackers.tracker_config import TrackerConfig

__all__ = ["AgentFigures", "TimeLimit", "TrackedRun", "TrackerConfig", "publish", "warn_early"]
