"""What goes wrong in a rollout, and whether it would go wrong again.

    RuntimeError
    ├── RolloutFailure                  one rollout or group; what it means is the caller's decision
    │   ├── RolloutInfraFailure         worth another try
    │   │   ├── RolloutTimeout          a limit of RolloutTimeouts ran out
    │   │   ├── GenerationUnavailable   the backend failed or gave nothing
    │   │   ├── NoHealthyShards         no backend is left to ask
    │   │   └── GymTransportError       an environment's server could not be reached, or broke off
    │   └── RolloutDataFailure          the same input would fail again
    ├── RolloutRedispatchExhausted      infrastructure failed prompt after prompt: the run must end
    └── RolloutStall                    nothing moves any more: the run must end

All of them take one text and can be pickled.
"""

from collections.abc import Iterator
from enum import Enum

_MOST_CAUSES = 8


class FailureClass(Enum):
    """Whose fault it was."""

    INFRA = "infra"
    DATA = "data"


class RolloutFailure(RuntimeError):
    """A rollout that gave no completion."""


class RolloutInfraFailure(RolloutFailure):
    pass


class RolloutTimeout(RolloutInfraFailure):
    pass


class GenerationUnavailable(RolloutInfraFailure):
    pass


class NoHealthyShards(RolloutInfraFailure):
    pass


class GymTransportError(RolloutInfraFailure):
    pass


class RolloutDataFailure(RolloutFailure):
    pass


class RolloutRedispatchExhausted(RuntimeError):
    pass


class RolloutStall(RuntimeError):
    pass


TERMINAL = (RolloutRedispatchExhausted, RolloutStall)
"""Nobody on the way up makes another failure of these, or goes on in spite of them."""

_INFRA_NAMES = frozenset(
    {
        *("ClientConnectionError", "ClientPayloadError", "ServerDisconnectedError"),  # aiohttp
        *("TransportError", "TimeoutException"),  # httpx
        *("ConnectionError", "Timeout", "ChunkedEncodingError"),  # requests
        *("URLError", "gaierror"),  # urllib and socket
        *("APIConnectionError", "APITimeoutError"),  # openai
        *("ProtocolError", "MaxRetryError", "NewConnectionError"),  # urllib3
        *("RayActorError", "ActorUnavailableError", "WorkerCrashedError", "NodeDiedError", "OwnerDiedError"),
        *("RaySystemError", "ObjectLostError", "LocalRayletDiedError"),
        *("BrokenExecutor", "BrokenProcessPool"),
        *("ServerUnreachableError",),  # nemo_gym
    }
)
"""Classes of libraries that need not be installed: a server that is not there, a worker that died."""


def classify_rollout_failure(exc: BaseException) -> FailureClass:
    """Infrastructure or data; what is not known is data, which is tried less often."""
    if isinstance(exc, RolloutDataFailure):
        return FailureClass.DATA
    for link in _causes(exc):
        known = _class_of(link)
        if known is not None:
            return known
    return FailureClass.DATA


def _causes(exc: BaseException) -> Iterator[BaseException]:
    """The exception, then what caused it, and so on."""
    link: BaseException | None = exc
    for _ in range(_MOST_CAUSES + 1):
        if link is None:
            return
        yield link
        link = link.__cause__


def _class_of(exc: BaseException) -> FailureClass | None:
    if isinstance(exc, RolloutDataFailure):
        return FailureClass.DATA
    if isinstance(exc, RolloutInfraFailure | TimeoutError | ConnectionError):
        return FailureClass.INFRA
    status = http_status(exc)
    if status is not None:
        return class_of_status(status)
    if any(cls.__name__ in _INFRA_NAMES for cls in type(exc).__mro__):
        return FailureClass.INFRA
    return None


def class_of_status(status: int) -> FailureClass | None:
    """What an HTTP answer says of the failure; None where it is no error."""
    if status >= 500 or status in (408, 429):
        return FailureClass.INFRA
    return FailureClass.DATA if status >= 400 else None


def http_status(exc: BaseException) -> int | None:
    """The status of an HTTP error, whichever library raised it."""
    for owner in (exc, getattr(exc, "response", None)):
        for name in ("status", "status_code"):
            status = getattr(owner, name, None)
            if isinstance(status, int) and not isinstance(status, bool) and 400 <= status < 600:
                return status
    return None
