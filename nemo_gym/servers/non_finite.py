"""Scores that JSON cannot express: NaN and infinite values become null, and the response names their fields.

Each transport and each way to serialise a model would otherwise turn them into null without a trace, or fail.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fastapi.encoders import jsonable_encoder
from pydantic import BaseModel
from starlette.responses import Response

from nemo_gym.codec import encode_json
from nemo_gym.types import NON_FINITE_KEY_NAME


def names_non_finite(route: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a route that returns a scored rollout: `_ng_non_finite` lists its fields that are not finite.

    A route that writes its response itself (`-> Response`) is not wrapped.
    """
    if inspect.signature(route).return_annotation is Response:
        return route

    @functools.wraps(route)
    async def named(*args: Any, **kwargs: Any) -> Any:
        return _named(await route(*args, **kwargs))

    @functools.wraps(route)
    def named_blocking(*args: Any, **kwargs: Any) -> Any:
        return _named(route(*args, **kwargs))

    is_coroutine = any(map(inspect.iscoroutinefunction, (route, inspect.unwrap(route))))
    return named if is_coroutine else named_blocking


def _named(result: Any) -> Any:
    """The result unchanged, unless it has such a field."""
    if isinstance(result, BaseModel):
        names = [*_odd(vars(result)), *_odd(result.__pydantic_extra__ or {})]
    elif isinstance(result, dict):
        names = _odd(result)
    else:
        return result
    if not names:
        return result
    fields = jsonable_encoder(result) if isinstance(result, BaseModel) else result
    known = fields.get(NON_FINITE_KEY_NAME) or []
    listed = {**fields, NON_FINITE_KEY_NAME: [*known, *(name for name in names if name not in known)]}
    return Response(encode_json(listed), media_type="application/json")


def _odd(fields: dict[str, Any]) -> list[str]:
    return [name for name, value in fields.items() if isinstance(value, float) and value - value != 0.0]
