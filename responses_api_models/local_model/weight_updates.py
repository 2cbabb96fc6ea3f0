"""Loads other weights into a running server, and puts their version on what they generate."""

from typing import Any

from fastapi import HTTPException
from pydantic import BaseModel

from nemo_gym.config_types import ConfigError
from nemo_gym.local_engine import LocalEngine
from responses_api_models.local_model.local_model_config import LocalModelConfig

WEIGHT_VERSION = "weight_version"


class LoadWeights(BaseModel):
    """The weights to serve from now on; also the response of the route."""

    model_path: str
    """A GGUF file of the same model, on the server's machine."""
    weight_version: int | None = None
    """Put on every response that these weights generate."""


async def load_weights(engine: LocalEngine, weights: LoadWeights, config: LocalModelConfig) -> LoadWeights:
    """Load weights; returns when nothing uses the old ones any more."""
    if not config.allow_weight_updates:
        raise HTTPException(
            403,
            "changing the weights of this server is not allowed; set allow_weight_updates: true to allow it",
        )
    try:
        await engine.reload(config.find_weights(weights.model_path), weights.weight_version)
    except ConfigError as error:
        raise HTTPException(400, str(error)) from error
    return weights


def versioned_completion(completion: dict[str, Any], weight_version: int | None) -> dict[str, Any]:
    """`completion` with the version of the weights that generated it in its metadata, if they have one."""
    if weight_version is None:
        return completion
    return completion | {"metadata": {WEIGHT_VERSION: str(weight_version)}}


def versioned_params(params: dict[str, Any], completion: dict[str, Any]) -> dict[str, Any]:
    """`params` with the version in their metadata: a model response repeats the metadata of its request."""
    if "metadata" not in completion:
        return params
    return params | {"metadata": {**(params.get("metadata") or {}), **completion["metadata"]}}
