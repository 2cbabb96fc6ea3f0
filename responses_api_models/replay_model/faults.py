"""Injected faults: which request gets one, and what the caller receives.

Invariant: a fault depends on the seed, on the request and on how many times it was sent before, never on the
clock or on other requests. So a run can be repeated, and a retried request may succeed.
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
"""Rates such as ten times 0.1 add up to slightly more than 1."""


class Fault(StrEnum):
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    DISCONNECT = "disconnect"
    HANG = "hang"
    GARBAGE_JSON = "garbage_json"
    SLOW = "slow"
    EMPTY_OUTPUT = "empty_output"
    NAN_LOG_PROBS = "nan_log_probs"


WITH_RESPONSE = frozenset({Fault.SLOW, Fault.EMPTY_OUTPUT, Fault.NAN_LOG_PROBS})
"""Faults with a model response, after which the conversation continues; the others give an error."""


class FaultsConfig(BaseModel):
    """The rate of each fault: its share of requests, from 0 to 1. A request has at most one fault."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    rate_limited: float = _Rate
    """Status 429 with Retry-After."""
    retry_after_s: float = Field(default=1.0, ge=0.0)
    """The Retry-After of `rate_limited`, in seconds."""
    server_error: float = _Rate
    """Status 500."""
    disconnect: float = _Rate
    """The connection closes before the response is complete."""
    hang: float = _Rate
    """No response as long as the caller waits; the caller needs a timeout."""
    garbage_json: float = _Rate
    """Status 200 with a body that is not JSON."""
    slow: float = _Rate
    """The recorded response, `slow_s` later."""
    slow_s: float = Field(default=30.0, ge=0.0)
    """The delay of `slow`, in seconds."""
    empty_output: float = _Rate
    """A valid response without output items."""
    nan_log_probs: float = _Rate
    """A NaN (null in JSON) among the log-probabilities; has no effect on responses without any."""
    seed: int = 0
    """Selects which requests get a fault."""

    @model_validator(mode="after")
    def _check_sum(self) -> "FaultsConfig":
        total = sum(self.rates.values())
        if total > 1.0 + _ROUNDING:
            rates = ", ".join(f"{fault} {rate:g}" for fault, rate in self.rates.items() if rate)
            raise ValueError(f"the rates add up to {total:g} ({rates}); their sum must be 1 or less")
        return self

    @property
    def rates(self) -> dict[Fault, float]:
        return {fault: getattr(self, fault) for fault in Fault}


class Dice:
    """Decides which requests get a fault."""

    def __init__(self, config: FaultsConfig) -> None:
        rates = [(fault, rate) for fault, rate in config.rates.items() if rate]
        ends = accumulate(rate for _, rate in rates)
        self._ends = [(end, fault) for end, (fault, _) in zip(ends, rates, strict=True)]
        self._seed = str(config.seed).encode()

    def throw(self, digest: int, place: int, number: int) -> Fault | None:
        """The fault of a request, from the digest of its conversation, the place of its rollout among those
        of the prompt, and how many times it was sent before."""
        if not self._ends:
            return None
        thrown = blake2b(pack("<QQQ", digest, place, number), digest_size=8, key=self._seed[:64])
        chance = int.from_bytes(thrown.digest()) / 2**64
        return next((fault for end, fault in self._ends if chance < end), None)


class BrokenResponse(Response):
    """A response that ends after its headers. Over HTTP the server then closes the connection; in one process
    the call raises an error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"1000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


class Hanging(Response):
    """Sends nothing until the caller disconnects; a caller in this process cancels it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


def fault_response(fault: Fault, config: FaultsConfig, server: str) -> Response:
    """The HTTP response of a fault without a model response."""
    match fault:
        case Fault.RATE_LIMITED:
            body = b'{"error": {"message": "injected fault: rate limited", "code": 429}}'
            headers = {"Retry-After": f"{config.retry_after_s:g}"}
            return Response(body, 429, headers, "application/json")
        case Fault.SERVER_ERROR:
            # Raised as the error of a call: a 500 that a server returns itself would count as a data failure.
            ClientResponse(500, (), b"injected fault: server error", url=server).raise_for_status()
        case Fault.DISCONNECT:
            return BrokenResponse()
        case Fault.HANG:
            return Hanging()
        case Fault.GARBAGE_JSON:
            return Response(b'{"id": "resp_injected_fault", "output": [{"ty', media_type="application/json")
    raise ValueError(f"{fault} has a model response")


def with_fault(response: dict[str, Any], fault: Fault | None) -> dict[str, Any]:
    """The model response with the effect of the fault; the argument is not changed."""
    if fault is Fault.EMPTY_OUTPUT:
        return {**response, "output": []}
    if fault is Fault.NAN_LOG_PROBS:
        return {**response, "output": [_with_nan(item) for item in response["output"]]}
    return response


def _with_nan(item: dict[str, Any]) -> dict[str, Any]:
    log_probs = item.get("generation_log_probs")
    return {**item, "generation_log_probs": [None, *log_probs[1:]]} if log_probs else item
