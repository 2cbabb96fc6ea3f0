"""Infrastructure or data: which failures are worth another attempt."""

import pickle
import socket
import urllib.error
from concurrent.futures.process import BrokenProcessPool
from email.message import Message
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from nemo_rl.experience import failures
from nemo_rl.experience.failures import (
    FailureClass,
    GenerationUnavailable,
    RolloutConfigurationError,
    RolloutDataFailure,
    RolloutFailure,
    RolloutInfraFailure,
    RolloutRedispatchExhausted,
    RolloutStall,
    classify_rollout_failure,
)

INFRA, DATA = FailureClass.INFRA, FailureClass.DATA


class HttpError(Exception):
    def __init__(self, **attributes: Any) -> None:
        super().__init__("http")
        self.__dict__.update(attributes)


def caused(error: Exception, *causes: Exception) -> Exception:
    link = error
    for cause in causes:
        link.__cause__ = cause
        link = cause
    return error


def named(name: str, base: type[Exception] = Exception) -> Any:
    """A class of a library that may not be installed."""
    return type(name, (base,), {})


class ActorDiedError(named("RayActorError")):  # type: ignore[misc]  # as in Ray
    pass


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError(), INFRA),
        (ConnectionResetError(), INFRA),
        (GenerationUnavailable("x"), INFRA),
        (RolloutDataFailure("x"), DATA),
        (ValueError("x"), DATA),
        (caused(ValueError("x"), ConnectionResetError()), INFRA),
        (caused(RolloutDataFailure("x"), ConnectionResetError()), DATA),
        (caused(RuntimeError("x"), RolloutDataFailure("y"), ConnectionResetError()), DATA),
        (HttpError(status=503), INFRA),
        (HttpError(status_code=500), INFRA),
        (HttpError(status=408), INFRA),
        (HttpError(status=429), INFRA),
        (HttpError(status=529), INFRA),
        (HttpError(status=400), DATA),
        (HttpError(status=401), DATA),
        (HttpError(status=425), DATA),
        (HttpError(status_code=404), DATA),
        (HttpError(response=SimpleNamespace(status_code=502)), INFRA),
        (HttpError(response=SimpleNamespace(status_code=422)), DATA),
        (caused(RuntimeError("x"), HttpError(status=503)), INFRA),
        (aiohttp.ServerDisconnectedError(), INFRA),
        (aiohttp.ClientPayloadError(), INFRA),
        (ActorDiedError(), INFRA),
        (named("ConnectError", named("TransportError"))(), INFRA),  # httpx
        (named("APIConnectionError")(), INFRA),  # openai
        (named("ConnectionError", OSError)(), INFRA),  # requests
        (named("RequestException", OSError)(), DATA),
        (urllib.error.URLError("refused"), INFRA),
        (urllib.error.HTTPError("http://x", 404, "none", Message(), BytesIO()), DATA),
        (socket.gaierror(), INFRA),
        (BrokenProcessPool(), INFRA),
    ],
    ids=repr,
)
def test_b4_a_failure_is_infrastructure_or_data(error: Exception, expected: FailureClass) -> None:
    assert classify_rollout_failure(error) is expected


@pytest.mark.parametrize(("links", "expected"), [(8, INFRA), (9, DATA)])
def test_causes_are_followed_for_eight_links(links: int, expected: FailureClass) -> None:
    chain = [RuntimeError(str(n)) for n in range(links - 1)]
    assert classify_rollout_failure(caused(RuntimeError("x"), *chain, ConnectionError())) is expected


def test_cycle_of_causes_is_not_followed_forever() -> None:
    error = RuntimeError("x")
    error.__cause__ = error
    assert classify_rollout_failure(error) is DATA


def test_failures_form_the_published_tree_and_can_be_pickled() -> None:
    infra = ("RolloutTimeout", "GenerationUnavailable", "NoHealthyShards", "GymTransportError")
    for name in (*infra, "RolloutInfraFailure", "RolloutDataFailure", "RolloutFailure"):
        cls = getattr(failures, name)
        assert issubclass(cls, RolloutFailure)
        assert issubclass(cls, RolloutInfraFailure) == (name in (*infra, "RolloutInfraFailure"))
        again = pickle.loads(pickle.dumps(cls("what, where")))
        assert type(again) is cls and str(again) == "what, where"
    for terminal in (RolloutRedispatchExhausted, RolloutStall, RolloutConfigurationError):
        assert issubclass(terminal, RuntimeError) and not issubclass(terminal, RolloutFailure)
