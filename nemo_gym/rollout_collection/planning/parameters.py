"""Overrides of request parameters, checked for typing mistakes."""

from nemo_gym.config.hints import close_matches
from nemo_gym.rollout_collection.config import RolloutCollectionConfig

_NEAR_MISS = 0.85
_CHAT_NAMES = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}
"""Parameters that have another name in the Chat Completions API."""


def misspelt_parameters(config: RolloutCollectionConfig) -> list[str]:
    """Warnings about overrides that nearly match a parameter of the API; endpoints may accept other names."""
    overrides = config.responses_create_params
    if not overrides:
        return []
    from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming as Params  # slow to load

    known = {*Params.model_fields, *Params._rare}
    meant = {
        name: _CHAT_NAMES.get(name) or next(iter(close_matches(name, known, _NEAR_MISS)), None)
        for name in overrides
        if name not in known
    }
    return [
        f"warning: responses_create_params.{name} is not a parameter of the Responses API "
        f"(did you mean {close}?); it is sent unchanged"
        for name, close in meant.items()
        if close is not None
    ]
