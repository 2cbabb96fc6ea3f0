"""Judge models in verifiers. A failed call to a judge makes the rollout fail; it is not a wrong answer.

Wrap only the call, not the scoring: if the judge's response cannot be parsed, the verifier decides the score;
if there is no response, a JudgeError is raised.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi.responses import Response
from pydantic import BaseModel

from nemo_gym.client import ServerClient
from nemo_gym.codec import encode_json
from nemo_gym.errors import JudgeError
from nemo_gym.failures import FailureKind
from nemo_gym.http import Cookies, get_response_json, raise_for_status
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.types import NG_FAILURE_CLASS_KEY, NG_FAILURE_COUNT_KEY, NG_JUDGE_ERROR_KEY

__all__ = ["JudgeError", "call_judge", "judge_failsafe", "reraise_judge_errors"]

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", bound=BaseModel)


async def call_judge(
    server_client: ServerClient,
    server_name: str,
    json: Any,
    response_type: type[ResponseT] = NeMoGymResponse,  # type: ignore[assignment]  # the usual one
    *,
    url_path: str = "/v1/responses",
    cookies: Cookies | None = None,
    response_model: type[ResponseT] | None = None,
) -> ResponseT:
    """Call the judge model `server_name`; any failure of the call raises a JudgeError.

    `response_model` is the published name of `response_type` and takes precedence.
    """

    async def call() -> ResponseT:
        session = {} if cookies is None else {"cookies": cookies}
        response = await server_client.post(server_name=server_name, url_path=url_path, json=json, **session)
        await raise_for_status(response)
        model = response_model or response_type
        return model.model_validate(await get_response_json(response))

    return await reraise_judge_errors(call())


async def reraise_judge_errors(call: Awaitable[T]) -> T:
    """Await a call to a judge; any error it raises becomes a JudgeError."""
    try:
        return await call
    except JudgeError:
        raise
    except Exception as error:  # the boundary between a verifier and its judge
        raise _judge_error(error) from error


def _judge_error(error: Exception) -> JudgeError:
    """With the number of failures that it counts as; a wrong key or address of the judge keeps its kind."""
    failed = JudgeError(f"{type(error).__name__}: {error}")
    failed.failure_count = getattr(error, "failure_count", 1)
    if getattr(error, "kind", None) is FailureKind.CONFIGURATION:
        failed.kind = FailureKind.CONFIGURATION
    return failed


def judge_failsafe(verify: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `verify`: a JudgeError becomes a response with reward 0 and the failure class `judge_failed`."""

    @functools.wraps(verify)
    async def verify_or_report(*args: Any, **kwargs: Any) -> Any:
        try:
            return await verify(*args, **kwargs)
        except JudgeError as error:
            return _failure_response(error, (*args, *kwargs.values()))

    @functools.wraps(verify)
    def verify_or_report_blocking(*args: Any, **kwargs: Any) -> Any:
        try:
            return verify(*args, **kwargs)
        except JudgeError as error:
            return _failure_response(error, (*args, *kwargs.values()))

    is_coroutine = any(map(inspect.iscoroutinefunction, (verify, inspect.unwrap(verify))))
    return verify_or_report if is_coroutine else verify_or_report_blocking


def _failure_response(error: JudgeError, arguments: tuple[Any, ...]) -> Response:
    # The last one is the body: the server itself is a model too, and comes first.
    bodies = [value for value in arguments if isinstance(value, BaseModel | dict)]
    row = bodies[-1] if bodies else {}
    if isinstance(row, BaseModel):
        row = row.model_dump(mode="json", exclude_unset=True)
    failure_class = error.kind or FailureKind.JUDGE_FAILED.value
    failure: dict[str, Any] = {
        "reward": 0.0,
        NG_FAILURE_CLASS_KEY: failure_class,
        NG_JUDGE_ERROR_KEY: str(error),
    }
    if error.failure_count > 1:
        failure[NG_FAILURE_COUNT_KEY] = error.failure_count
    return Response(encode_json(row | failure), media_type="application/json")
