"""Other weights for a server that runs: the route's models, and the mark on what they wrote."""

from typing import Any

from fastapi import HTTPException
from pydantic import BaseModel

from nemo_gym.config_types import ConfigError
from nemo_gym.local_engine import LocalEngine, find_weights

WEIGHT_VERSION = "weight_version"


class LoadWeights(BaseModel):
    """Weights to serve from now on; the answer repeats them."""

    model_path: str
    """A GGUF file of the same model, on the server's machine."""
    weight_version: int | None = None
    """Put on every answer of theirs."""


async def load_weights(engine: LocalEngine, wanted: LoadWeights, *, is_allowed: bool) -> LoadWeights:
    """Over when nothing runs on the old weights any more."""
    if not is_allowed:
        raise HTTPException(
            403, "this server's weights are not to be changed; set allow_weight_updates: true to allow it"
        )
    try:
        await engine.reload(find_weights(wanted.model_path), wanted.weight_version)
    except ConfigError as error:
        raise HTTPException(400, str(error)) from error
    return wanted


def stamped(answer: dict[str, Any], weight_version: int | None) -> dict[str, Any]:
    """An answer that says which weights wrote it, where they have a version."""
    if weight_version is None:
        return answer
    return answer | {"metadata": {WEIGHT_VERSION: str(weight_version)}}


def with_stamp(params: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """A request whose metadata, which a Response repeats, hold the stamp of its answer."""
    if "metadata" not in answer:
        return params
    return params | {"metadata": {**(params.get("metadata") or {}), **answer["metadata"]}}
