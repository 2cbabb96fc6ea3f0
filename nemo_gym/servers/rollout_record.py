"""The record of a verified rollout: the verifier's response laid over what the verifier was given.

Invariant: input and transcript are in it, whatever the verifier returns.
"""

import json
from collections.abc import Mapping
from typing import Any

import orjson

from nemo_gym.codec import decode_json, encode_json
from nemo_gym.types import (
    NG_FAILURE_CLASS_KEY,
    NG_JUDGE_ERROR_KEY,
    NG_NO_PERSIST_KEY,
    NG_TERMINAL_KEY,
    NON_FINITE_KEY_NAME,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
)

_TRANSCRIPT = (RESPONSES_CREATE_PARAMS_KEY_NAME, RESPONSE_KEY_NAME)
_VERDICT = {
    "reward",
    NON_FINITE_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    NG_JUDGE_ERROR_KEY,
    NG_NO_PERSIST_KEY,
    NG_TERMINAL_KEY,
}
"""Never taken from the row, which may be a rollout of an earlier run."""


def rollout_record(verify_request: Mapping[str, Any], verified: bytes) -> bytes:
    """The body of a `/verify` response, with the fields of the request that it does not have.

    What the verifier returned is passed on byte by byte. A body that is not a JSON object stays as it is.
    """
    try:
        verdict = _parsed(verified)
    except (ValueError, RecursionError):
        return verified
    lost = lost_fields(verify_request, verdict) if isinstance(verdict, dict) else {}
    if not lost:
        return verified
    if not verdict.keys().isdisjoint(lost):
        return json.dumps(decode_json(verified) | lost).encode()
    rest = verified[verified.index(b"{") + 1 :]
    return encode_json(lost)[:-1] + (b"," if verdict else b"") + rest


def lost_fields(given: Mapping[str, Any], returned: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are missing from what was returned, or used for something other than the transcript."""
    return {
        name: value
        for name, value in given.items()
        if (name not in returned and name not in _VERDICT)
        or (name in _TRANSCRIPT and not isinstance(returned[name], dict))
    }


def _parsed(body: bytes) -> Any:
    """The body as data; whole numbers beyond 64 bits are not exact."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:  # it may have NaN or infinity in it
        return decode_json(body)
