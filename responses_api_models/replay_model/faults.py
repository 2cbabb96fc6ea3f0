"""Faults on purpose: which request gets one, and what it looks like to the caller.

Invariant: a fault depends on the seed, on the request and on how often it was asked, never on the clock or on
other requests; so a run can be repeated, and a request that is sent again has a new chance.
"""

from enum import StrEnum
from hashlib import blake2b
from itertools import accumulate
from struct import pack
from typing import Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.types import Receive, Scope, Send

from nemo_gym.server_utils import ClientResponse

_Rate = Field(default=0.0, ge=0.0, le=1.0)
_ROUNDING = 1e-9
"""Rates such as ten times 0.1 add up to a little more than 1."""


class Fault(StrEnum):
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    DISCONNECT = "disconnect"
    HANG = "hang"
    GARBAGE_JSON = "garbage_json"
    SLOW = "slow"
    EMPTY_OUTPUT = "empty_output"
    NAN_LOG_PROBS = "nan_log_probs"


ANSWERED = frozenset({Fault.SLOW, Fault.EMPTY_OUTPUT, Fault.NAN_LOG_PROBS})
"""Those after which the conversation goes on; after any other the caller has nothing."""


class FaultsConfig(BaseModel):
    """How much goes wrong. A rate is a share of requests, from 0 to 1; a request has one fault at most."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    rate_limited: float = _Rate
    """Answered 429 with Retry-After."""
    retry_after_s: float = Field(default=1.0, ge=0.0)
    """The wait, in seconds, that such an answer asks for."""
    server_error: float = _Rate
    """Answered 500."""
    disconnect: float = _Rate
    """The connection closes before the answer is whole."""
    hang: float = _Rate
    """No answer as long as the caller waits; so it needs a timeout."""
    garbage_json: float = _Rate
    """Answered 200 with a body that is not JSON."""
    slow: float = _Rate
    """The right answer, `slow_s` later."""
    slow_s: float = Field(default=30.0, ge=0.0)
    """How much later, in seconds."""
    empty_output: float = _Rate
    """A valid answer with no output items."""
    nan_log_probs: float = _Rate
    """A NaN (null in JSON) among the log-probabilities; only answers that have some can get it."""
    seed: int = 0
    """Another seed, other requests that get a fault."""

    @model_validator(mode="after")
    def _adds_up(self) -> "FaultsConfig":
        total = sum(self.rates.values())
        if total > 1.0 + _ROUNDING:
            given = ", ".join(f"{fault} {rate:g}" for fault, rate in self.rates.items() if rate)
            raise ValueError(f"the rates add up to {total:g} ({given}); lower them to 1 or less in all")
        return self

    @property
    def rates(self) -> dict[Fault, float]:
        return {fault: getattr(self, fault) for fault in Fault}


class Dice:
    """Decides who gets a fault."""

    def __init__(self, config: FaultsConfig) -> None:
        given = [(fault, rate) for fault, rate in config.rates.items() if rate]
        ends = accumulate(rate for _, rate in given)
        self._ends = [(end, fault) for end, (fault, _) in zip(ends, given, strict=True)]
        self._seed = str(config.seed).encode()

    def throw(self, key: int, place: int, number: int) -> Fault | None:
        """The fault of a request: its conversation, which of several like it, and how often it was asked."""
        if not self._ends:
            return None
        thrown = blake2b(pack("<QQQ", key, place, number), digest_size=8, key=self._seed[:64])
        chance = int.from_bytes(thrown.digest()) / 2**64
        return next((fault for end, fault in self._ends if chance < end), None)


class BrokenOff(Response):
    """An answer that ends after its headers: over HTTP the server then closes the connection, in one process
    the caller is told that the answer broke off."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"1000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


class Hanging(Response):
    """Sends nothing until the caller has gone; a caller in this process cancels it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


def refusal(fault: Fault, config: FaultsConfig, server: str) -> Response:
    """The answer that stands for a fault after which the caller has nothing."""
    match fault:
        case Fault.RATE_LIMITED:
            body = b'{"error": {"message": "injected fault: rate limited", "code": 429}}'
            headers = {"Retry-After": f"{config.retry_after_s:g}"}
            return Response(body, 429, headers, "application/json")
        case Fault.SERVER_ERROR:
            # As an error of a call, because an answer of 500 that a server chose itself counts as data.
            ClientResponse(500, (), b"injected fault: server error", url=server).raise_for_status()
        case Fault.DISCONNECT:
            return BrokenOff()
        case Fault.HANG:
            return Hanging()
        case Fault.GARBAGE_JSON:
            return Response(b'{"id": "resp_injected_fault", "output": [{"ty', media_type="application/json")
    raise ValueError(f"{fault} has an answer")


def spoiled(answer: dict[str, Any], fault: Fault | None) -> dict[str, Any]:
    """The answer with what the fault does to it; what came in stays as it is."""
    if fault is Fault.EMPTY_OUTPUT:
        return {**answer, "output": []}
    if fault is Fault.NAN_LOG_PROBS:
        return {**answer, "output": [_with_nan(item) for item in answer["output"]]}
    return answer


def _with_nan(item: dict[str, Any]) -> dict[str, Any]:
    log_probs = item.get("generation_log_probs")
    return {**item, "generation_log_probs": [None, *log_probs[1:]]} if log_probs else item
