"""Failures: the kinds, what each kind means, and the kind of every HTTP status and exception.

This is the only module that decides. To add a kind, add it to `FailureKind` and `KIND_RULES`; every consumer
reads the rules from here. Who produced a status or an exception matters, so both tables have a column per
`Boundary`.
"""

import json
import logging
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, NewType

from nemo_gym.types import POLICY_MODEL_KEY_NAME

logger = logging.getLogger(__name__)


class FailureKind(StrEnum):
    """Why a rollout failed. The value is the class on disk and in the failure header."""

    INFRASTRUCTURE = "infrastructure"
    """A server, endpoint or worker failed. Another attempt may succeed."""
    TIMEOUT = "timeout"
    """The rollout reached its deadline."""
    DATA = "data"
    """The same input would fail again: a refused request, an exception in an environment, no reward."""
    CONFIGURATION = "configuration"
    """Wrong key, wrong address, unknown model. No task is at fault. In `nemo_rl` it ends the run."""
    CANCELLED = "cancelled"
    """The run was stopped."""
    JUDGE_FAILED = "judge_failed"
    """The judge model gave no verdict."""


DeclaredKind = NewType("DeclaredKind", str)
"""A failure class that an agent made up. Only `declared_kind` creates one, so a misspelt kind in our own code
is a type error."""

AnyKind = FailureKind | DeclaredKind


class TrainingEffect(Enum):
    """What a failure means in `nemo_rl`."""

    INFRA = "infra"
    """Retried within the infrastructure budget."""
    DATA = "data"
    """Counts against the prompt."""
    TERMINAL = "terminal"
    """Ends the run."""


@dataclass(frozen=True)
class KindRule:
    """What a failure of one kind means. No defaults: a new kind has to decide each of these."""

    is_retried: bool
    """The collector makes another attempt in the same run, within `max_attempts`."""
    uses_data_attempts: bool
    """The task is the cause: it counts towards the data attempts of the rollout, across all runs."""
    counts_as_attempt: bool
    """It counts in `_ng_attempt_index` and `max_failure_rate`. False if the run ended the attempt."""
    training: TrainingEffect
    blames_endpoint: bool
    """An endpoint is the cause: the attempt does not count, unless other rollouts succeed meanwhile."""


KIND_RULES: Mapping[str, KindRule] = MappingProxyType(
    {
        FailureKind.INFRASTRUCTURE: KindRule(True, False, True, TrainingEffect.INFRA, False),
        FailureKind.TIMEOUT: KindRule(True, False, True, TrainingEffect.INFRA, False),
        FailureKind.DATA: KindRule(True, True, True, TrainingEffect.DATA, False),
        FailureKind.CONFIGURATION: KindRule(True, False, True, TrainingEffect.TERMINAL, True),
        FailureKind.CANCELLED: KindRule(False, False, False, TrainingEffect.INFRA, False),
        FailureKind.JUDGE_FAILED: KindRule(True, False, True, TrainingEffect.INFRA, False),
    }
)
DECLARED_RULE = KindRule(False, True, True, TrainingEffect.DATA, False)
"""For a class that an agent made up: not retried in the same run, retried on resume."""


def rule_of(kind: AnyKind) -> KindRule:
    return KIND_RULES.get(kind, DECLARED_RULE)


def declared_kind(failure_class: object) -> AnyKind:
    """The kind that a `_ng_failure_class` field names; `data` if the field is empty."""
    text = str(failure_class or FailureKind.DATA)
    kind = _known_kind(text)
    if kind is None:
        _warn_of_near_miss(text)
        return DeclaredKind(text)
    return kind


def kind_in_header(text: str | None) -> FailureKind | None:
    """The kind that a failure header names; None if there is none, or one that we do not know."""
    if text is None:
        return None
    kind = _known_kind(text)
    if kind is None:
        _warn_of_unknown_kind(text)
    return kind


def _known_kind(text: str) -> FailureKind | None:
    try:
        return FailureKind(text)
    except ValueError:
        return None


@lru_cache(maxsize=64)  # once per name
def _warn_of_near_miss(text: str) -> None:
    """An agent may make up a class, but one that is nearly a kind is probably misspelt."""
    from difflib import get_close_matches

    close = get_close_matches(text.lower(), list(FailureKind), n=1, cutoff=0.8)
    if close:
        logger.warning(
            "an agent declared the failure class %r, which is treated as a class of its own; did it mean %r?",
            text,
            str(close[0]),
        )


@lru_cache(maxsize=64)  # once per name
def _warn_of_unknown_kind(text: str) -> None:
    logger.warning("a server reported the unknown failure class %r; its HTTP status decides instead", text)


class Boundary(Enum):
    """Where a status or an exception became a failure. The value names a column of `StatusRule`."""

    CALL = "call"
    """A call to a server, which did not name the kind."""
    SERVER_CODE = "server_code"
    """The code of an environment, agent or model server: it chose the status or raised the exception."""
    ENDPOINT = "endpoint"
    """A call to a model endpoint."""
    TRAINER = "trainer"
    """Anything that reaches `classify_rollout_failure` of `nemo_rl`, from any library."""


class Charge(Enum):
    """Whether a failed try of a call to an endpoint uses up one of the failures that its rollout may have."""

    ALWAYS = "always"
    """The endpoint took the request and failed."""
    IF_OTHERS_SUCCEED = "if others succeed"
    """The endpoint is unavailable, and the call waits for it. But if it responds to other calls meanwhile,
    the call itself may be the cause."""
    NEVER = "never"
    """The endpoint asks the call to wait."""


@dataclass(frozen=True)
class StatusRule:
    """What an HTTP error status means."""

    call: FailureKind
    server_code: FailureKind
    endpoint: FailureKind
    trainer: FailureKind
    is_retried: bool = False
    """The client of an endpoint sends the request again."""
    is_rate_limit: bool = False
    """The status is in the published list `RATE_LIMIT_ERROR_CODES`."""
    is_overload: bool = False
    """The adaptive concurrency limit shrinks."""
    charge: Charge = Charge.ALWAYS


_INFRA, _DATA, _CONFIGURATION = FailureKind.INFRASTRUCTURE, FailureKind.DATA, FailureKind.CONFIGURATION
_WAITS = Charge.IF_OTHERS_SUCCEED
_REFUSED = StatusRule(_DATA, _DATA, _DATA, _DATA)
_MISCONFIGURED = StatusRule(_DATA, _DATA, _CONFIGURATION, _DATA)
_BROKEN = StatusRule(_INFRA, _DATA, _INFRA, _INFRA)
"""In the code of a server a 500 is a bug, which the same input would meet again."""

STATUS_RULES: Mapping[int, StatusRule] = MappingProxyType(
    {
        401: _MISCONFIGURED,
        403: _MISCONFIGURED,
        404: _MISCONFIGURED,
        408: StatusRule(_INFRA, _INFRA, _INFRA, _INFRA),
        425: StatusRule(_INFRA, _INFRA, _INFRA, _DATA),  # `nemo_rl` publishes 408 and 429 only
        429: StatusRule(_INFRA, _INFRA, _INFRA, _INFRA, True, True, True, Charge.NEVER),
        500: StatusRule(_INFRA, _DATA, _INFRA, _INFRA, True),
        502: StatusRule(_INFRA, _INFRA, _INFRA, _INFRA, True, True, False, _WAITS),
        503: StatusRule(_INFRA, _INFRA, _INFRA, _INFRA, True, True, True, _WAITS),
        504: StatusRule(_INFRA, _INFRA, _INFRA, _INFRA, True, True, False, _WAITS),
        520: StatusRule(_INFRA, _INFRA, _INFRA, _INFRA, True, True),
        529: StatusRule(_INFRA, _INFRA, _INFRA, _INFRA, True, True, True, _WAITS),
    }
)
"""Any other status from 500 is `_BROKEN`, any other below `_REFUSED`."""

RATE_LIMIT_STATUSES = tuple(status for status, rule in STATUS_RULES.items() if rule.is_rate_limit)
RETRIED_STATUSES = tuple(status for status, rule in STATUS_RULES.items() if rule.is_retried)
OVERLOAD_STATUSES = tuple(status for status, rule in STATUS_RULES.items() if rule.is_overload)
MISSING_ROUTE_STATUSES = (404, 405, 501)
"""A server or endpoint that does not have a route responds with one of these."""


def charge_of_status(status: int) -> Charge:
    """The charge of a try that got this error status."""
    rule = STATUS_RULES.get(status)
    return rule.charge if rule is not None else Charge.ALWAYS


_NEVER_SENT = frozenset({"ClientConnectorError", "ClientConnectionResetError", "ConnectionTimeoutError"})


def was_never_sent(error: BaseException) -> bool:
    """Whether a connection error came before the request reached the other side."""
    return not _NEVER_SENT.isdisjoint(base.__name__ for base in type(error).__mro__)


def charge_of_error(error: BaseException) -> Charge:
    """The charge of a try that ended with this connection error or timeout."""
    return Charge.IF_OTHERS_SUCCEED if was_never_sent(error) else Charge.ALWAYS


def connection_cause(error: BaseException | None) -> str:
    """A connection error in a few words: `connection refused`."""
    cause = getattr(error, "os_error", error)
    if isinstance(cause, socket.gaierror):
        return "host not found"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    if isinstance(cause, TimeoutError):
        return "timeout"
    return "broken connection" if error is None or not was_never_sent(error) else "no connection"


def kind_of_status(status: int, boundary: Boundary) -> FailureKind:
    rule = STATUS_RULES.get(status) or (_BROKEN if status >= 500 else _REFUSED)
    kind: FailureKind = getattr(rule, boundary.value)
    return kind


MODEL_CODES = frozenset({"model_not_found", "DeploymentNotFound"})
"""Error codes by which an endpoint says that it does not have the model."""
REQUEST_CODES = frozenset({"previous_response_not_found", "context_length_exceeded"})
"""Error codes by which an endpoint refuses one request."""
_MISSING_MODEL = re.compile(
    r"\bmodel\b[\s:]*\S{0,200}\s*(?:was |is |could )?(?:not (?:be )?found|does(?: not|n't) exist)"
    r"|\b(?:unknown|no such|invalid) model(?: name)?\b(?! (?:input|output|response|parameter))"
    r"|\bnot a valid model\b",
    re.IGNORECASE,
)
_SAID_WITHIN = 500
"""Characters of a message that are searched: further on it may quote the request."""


def kind_of_response(status: int, body: bytes, boundary: Boundary) -> FailureKind:
    """The kind of an error response that names none. Of an endpoint, 400 and 404 depend on the body."""
    if boundary is Boundary.ENDPOINT:
        if status < 400:  # redirects are not followed, because they would get the key
            return FailureKind.CONFIGURATION
        if status == 400 and is_about_model(body):
            return FailureKind.CONFIGURATION
        if status == 404 and endpoint_error(body).code in REQUEST_CODES:
            return FailureKind.DATA
    return kind_of_status(status, boundary)


def likely_fix(server: str, url: str, status: int | None, body: bytes) -> str:
    """What to do if an endpoint refuses every call; status None: its host was not found."""
    if status is None:
        return f"check the address of {_located(server, 'base_url')}"
    if status < 400:
        return f"give the final address of {_located(server, 'base_url')}"
    if is_about_model(body):
        return f"check the name of the model of {_located(server, 'model_name')}"
    if status in (401, 403):
        return f"check the key of {_located(server, 'api_key')}"
    if "/v1/" not in url.partition("?")[0]:
        return f"the base URL usually ends in /v1: check the address of {_located(server, 'base_url')}"
    return f"check the address and the name of the model of {_located(server, 'base_url', 'model_name')}"


def _located(server: str, *settings: str) -> str:
    """A model server with the settings to change: those of the policy have published names."""
    if server != POLICY_MODEL_KEY_NAME:
        return f"{server} in the configuration"
    return f"{server} ({', '.join(f'policy_{setting}' for setting in settings)})"


def is_about_model(body: bytes) -> bool:
    """Whether an error of an endpoint says that it does not have the model."""
    error = endpoint_error(body)
    return error.code in MODEL_CODES or _MISSING_MODEL.search(error.message[:_SAID_WITHIN]) is not None


class ErrorBody(NamedTuple):
    """What the body of an error response says."""

    message: str
    code: str = ""
    type: str = ""


def endpoint_error(body: bytes) -> ErrorBody:
    """The error in the body of an endpoint's response; a body of another format is the message."""
    try:
        error = json.loads(body)
    except (ValueError, RecursionError):
        return ErrorBody(_quoted(body))
    if isinstance(error, dict):
        error = error.get("error") or error.get("detail") or error
    if isinstance(error, dict):
        found = ErrorBody(*(str(error.get(field) or "") for field in ErrorBody._fields))
        return found if found.message else found._replace(message=_quoted(body))
    return ErrorBody(error if isinstance(error, str) else _quoted(body))


def _quoted(body: bytes) -> str:
    return body[:_SAID_WITHIN].decode("utf-8", "replace")


_STATUSES_BY_NAME = (
    (429, ("rate_limit",)),
    (529, ("overloaded",)),
    (401, ("invalid_api_key", "authentication")),
    (404, ("model_not_found",)),
    (400, ("invalid", "context_length")),
)
"""Parts of the type or the code of an error, and the status of a response with such an error."""


def status_in_stream(error: object) -> int:
    """The status that an error within a stream would have had before the stream began."""
    fields = error if isinstance(error, dict) else {}
    for value in (fields.get("status"), fields.get("code")):
        if isinstance(value, int | str) and str(value).isdecimal() and 400 <= int(value) <= 599:
            return int(value)
    names = f"{fields.get('type')} {fields.get('code')}".lower()
    return next((status for status, parts in _STATUSES_BY_NAME if any(part in names for part in parts)), 502)


@dataclass(frozen=True)
class ExceptionRule:
    """The kind of exception classes, given by name: their libraries may not be installed."""

    kind: FailureKind
    boundaries: frozenset[Boundary]
    names: frozenset[str]


EXCEPTION_RULES = (
    ExceptionRule(
        FailureKind.JUDGE_FAILED,
        frozenset({Boundary.CALL, Boundary.SERVER_CODE, Boundary.TRAINER}),
        frozenset({"JudgeError"}),
    ),
    # Another try would most likely receive the same, up to the limit. Not a broken connection, so that the
    # clients of endpoints do not send the call again.
    ExceptionRule(FailureKind.DATA, frozenset(Boundary), frozenset({"ResponseTooLargeError"})),
    # Raised by the HTTP client and the sessions of a server. Anything else that its code raises is data.
    ExceptionRule(
        FailureKind.INFRASTRUCTURE,
        frozenset(Boundary),
        frozenset({"ClientConnectionError", "ClientPayloadError", "SessionEndedError", "UnreadableRollout"}),
    ),
    # The request of the collector or of a model server failed; a ConfigError there does not blame the row.
    ExceptionRule(
        FailureKind.INFRASTRUCTURE,
        frozenset({Boundary.CALL, Boundary.ENDPOINT}),
        frozenset({"ClientError", "OSError", "ConfigError"}),
    ),
    ExceptionRule(
        FailureKind.INFRASTRUCTURE,
        frozenset({Boundary.TRAINER}),
        frozenset(
            {
                *("TimeoutError", "ConnectionError"),
                *("TransportError", "TimeoutException"),  # httpx
                *("Timeout", "ChunkedEncodingError"),  # requests; its ConnectionError matches by name
                *("URLError", "gaierror"),  # urllib and socket
                *("APIConnectionError", "APITimeoutError"),  # openai
                *("ProtocolError", "MaxRetryError", "NewConnectionError"),  # urllib3
                *("RayActorError", "ActorUnavailableError", "WorkerCrashedError", "NodeDiedError"),
                *("OwnerDiedError", "RaySystemError", "ObjectLostError", "LocalRayletDiedError"),
                *("BrokenExecutor", "BrokenProcessPool"),
            }
        ),
    ),
)


def kind_of_exception(error: BaseException, boundary: Boundary) -> FailureKind:
    """The kind that the exception carries, or that of its class; `data` if the class is in no rule."""
    carried = getattr(error, "kind", None)
    if isinstance(carried, FailureKind):
        return carried
    if boundary is Boundary.ENDPOINT and has_unknown_host(error):
        return FailureKind.CONFIGURATION
    return kind_of_class(type(error), boundary) or FailureKind.DATA


def kind_of_class(cls: type[BaseException], boundary: Boundary) -> FailureKind | None:
    names = {base.__name__ for base in cls.__mro__}
    for rule in EXCEPTION_RULES:
        if boundary in rule.boundaries and names & rule.names:
            return rule.kind
    return None


def has_unknown_host(error: BaseException) -> bool:
    """Whether the address does not resolve. A name server that does not respond may respond later."""
    cause = getattr(error, "os_error", error)
    return isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN
