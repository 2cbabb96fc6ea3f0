"""Group metrics for W&B: plain data becomes `wandb.Histogram` and `wandb.Table`."""

import math
from collections.abc import Mapping
from typing import Any

from nemo_gym.extras import load_extra


def as_wandb(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """`wandb.log(as_wandb(record.rollout_metrics))`."""
    wandb = load_extra("wandb", "wandb", "as_wandb")

    def histogram(values: list[Any]) -> Any:
        """Without NaN and infinite numbers, which W&B does not accept."""
        return wandb.Histogram([value for value in values if math.isfinite(value)])

    def converted(key: str, value: Any) -> Any:
        if key.startswith("histogram/"):
            return histogram(value)
        match value:
            case {"values": list(values), **rest} if not rest:
                return histogram(values)
            case {"columns": list(columns), "data": list(data), **rest} if not rest:
                return wandb.Table(columns=columns, data=data)
            case _:
                return value

    return {key: converted(key, value) for key, value in metrics.items()}
