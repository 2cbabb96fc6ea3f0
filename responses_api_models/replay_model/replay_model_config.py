"""The settings of replay_model."""

from typing import Literal

from pydantic import Field

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig
from responses_api_models.replay_model.faults import FaultsConfig


class ReplayModelConfig(BaseResponsesAPIModelConfig):
    rollouts_fpath: str
    """The recorded rollouts, a file written by ng_collect_rollouts. A relative path is looked up in the
    working directory, then in the install root."""
    when_unknown: Literal["error", "any"] = "error"
    """The response to a request that is not recorded: an error, or the responses of another rollout."""
    latency_s: float = Field(default=0.0, ge=0.0)
    """Delay of every response, in seconds."""
    tokens_per_s: float | None = Field(default=None, gt=0.0)
    """Simulated speed of generation, in output tokens per second and request. None: no delay."""
    recorded_latency: bool = False
    """Also delay by the recorded duration of the call (`created_at` to `completed_at` of the response)."""
    latency_scale: float = Field(default=1.0, ge=0.0)
    """Factor for the recorded latency."""
    uses_reasoning_parser: bool = True
    """In chat completions, reasoning is in a separate field; if false, in the text between think tags."""
    faults: FaultsConfig = Field(default_factory=FaultsConfig)
    """The injected faults and their rates."""
