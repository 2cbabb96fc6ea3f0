"""Failures of rollouts, and whether to retry them.

    RuntimeError
    ├── RolloutFailure                  one rollout or group; the caller decides what it means
    │   ├── RolloutInfraFailure         a retry may succeed
    │   │   ├── RolloutTimeout          a limit of RolloutTimeouts was reached
    │   │   ├── GenerationUnavailable   the backend failed or returned no output
    │   │   ├── NoHealthyShards         no backend is available
    │   │   └── GymTransportError       a Gym server could not be reached, or failed
    │   └── RolloutDataFailure          the same input would fail again
    ├── RolloutRedispatchExhausted      too many prompts in a row were dropped: the run must end
    ├── RolloutStall                    no progress: the run must end
    └── RolloutConfigurationError       wrong key, address or model: the run must end

All of them take one string and can be pickled. `nemo_gym.failures` has the tables of kinds, statuses and
exceptions.
"""

from collections.abc import Iterator
from enum import Enum

from nemo_gym.failures import (
    AnyKind,
    Boundary,
    FailureKind,
    TrainingEffect,
    kind_of_class,
    kind_of_status,
    rule_of,
)

_MOST_CAUSES = 8


class FailureClass(Enum):
    """What caused a failure: the infrastructure or the data."""

    INFRA = "infra"
    DATA = "data"


class RolloutFailure(RuntimeError):
    """A rollout without a completion."""


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


class RolloutConfigurationError(RuntimeError):
    pass


TERMINAL = (RolloutRedispatchExhausted, RolloutStall, RolloutConfigurationError)
"""Errors that end the run: never caught, retried or converted on the way up."""

_GYM_ERRORS: dict[TrainingEffect, type[RuntimeError]] = {
    TrainingEffect.INFRA: GymTransportError,
    TrainingEffect.DATA: RolloutDataFailure,
    TrainingEffect.TERMINAL: RolloutConfigurationError,
}
_CLASSES = {
    TrainingEffect.INFRA: FailureClass.INFRA,
    TrainingEffect.DATA: FailureClass.DATA,
    TrainingEffect.TERMINAL: FailureClass.DATA,
}


def gym_failure(kind: AnyKind, text: str) -> RuntimeError:
    """The exception for a failure that a Gym server reports."""
    return _GYM_ERRORS[rule_of(kind).training](text)


def ends_run(exc: BaseException) -> bool:
    """Whether the failure, or one that caused it, carries a kind that ends the run."""
    kinds = (getattr(link, "kind", None) for link in _causes(exc))
    return any(
        isinstance(kind, FailureKind) and rule_of(kind).training is TrainingEffect.TERMINAL for kind in kinds
    )


def classify_rollout_failure(exc: BaseException) -> FailureClass:
    """Infrastructure or data. An unknown exception is data, which is retried less often."""
    if isinstance(exc, RolloutDataFailure):
        return FailureClass.DATA
    for link in _causes(exc):
        known = _class_of(link)
        if known is not None:
            return known
    return FailureClass.DATA


def _causes(exc: BaseException) -> Iterator[BaseException]:
    """The exception, its cause, the cause of that, and so on."""
    link: BaseException | None = exc
    for _ in range(_MOST_CAUSES + 1):
        if link is None:
            return
        yield link
        link = link.__cause__


def _class_of(exc: BaseException) -> FailureClass | None:
    if isinstance(exc, RolloutDataFailure):
        return FailureClass.DATA
    if isinstance(exc, RolloutInfraFailure):
        return FailureClass.INFRA
    status = http_status(exc)
    kind = (
        kind_of_class(type(exc), Boundary.TRAINER)
        if status is None
        else kind_of_status(status, Boundary.TRAINER)
    )
    return None if kind is None else _CLASSES[rule_of(kind).training]


def http_status(exc: BaseException) -> int | None:
    """The status of an HTTP error of any library."""
    for owner in (exc, getattr(exc, "response", None)):
        for name in ("status", "status_code"):
            status = getattr(owner, name, None)
            if isinstance(status, int) and not isinstance(status, bool) and 400 <= status < 600:
                return status
    return None
