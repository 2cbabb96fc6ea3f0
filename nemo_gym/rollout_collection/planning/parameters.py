"""Overrides of request parameters, checked for typing mistakes."""

from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.setting_names import meant_parameter

_NEAR_MISS = 0.85


def misspelt_parameters(config: RolloutCollectionConfig) -> list[str]:
    """Warnings about overrides that nearly match a parameter of the API; endpoints may accept other names."""
    meant = {name: meant_parameter(name, _NEAR_MISS) for name in config.responses_create_params}
    return [
        f"warning: responses_create_params.{name} is not a parameter of the Responses API "
        f"(did you mean {close}?); it is sent unchanged"
        for name, close in meant.items()
        if close is not None
    ]
