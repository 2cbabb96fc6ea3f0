"""The tables of failure kinds: rules, statuses, exceptions."""

import json
import logging
import pickle
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from nemo_gym.errors import ConfigError, JudgeError
from nemo_gym.failures import (
    DECLARED_RULE,
    EXCEPTION_RULES,
    KIND_RULES,
    OVERLOAD_STATUSES,
    RATE_LIMIT_STATUSES,
    RETRIED_STATUSES,
    STATUS_RULES,
    Boundary,
    Charge,
    FailureKind,
    _warn_of_near_miss,
    charge_of_status,
    declared_kind,
    endpoint_error,
    kind_in_header,
    kind_of_exception,
    kind_of_response,
    kind_of_status,
    rule_of,
    status_in_stream,
)
from nemo_gym.http import ServerUnreachableError

INFRASTRUCTURE, DATA, CONFIGURATION, JUDGE_FAILED = (
    FailureKind.INFRASTRUCTURE,
    FailureKind.DATA,
    FailureKind.CONFIGURATION,
    FailureKind.JUDGE_FAILED,
)
CALL, SERVER_CODE, ENDPOINT, TRAINER = Boundary


def test_every_kind_has_a_rule() -> None:
    assert set(KIND_RULES) == set(FailureKind)
    assert all(rule_of(kind) is KIND_RULES[kind] for kind in FailureKind)


@pytest.mark.parametrize("text", ["bad_weather", "Data", "infrastucture", " data", "INFRASTRUCTURE"])
def test_failure_class_of_an_agent_is_kept_unchanged(text: str) -> None:
    kind = declared_kind(text)
    assert not isinstance(kind, FailureKind) and kind == text
    assert rule_of(kind) is DECLARED_RULE


@pytest.mark.parametrize(
    ("text", "meant"), [("infrastucture", "infrastructure"), ("Judge_Failed", "judge_failed")]
)
def test_failure_class_that_is_nearly_a_kind_causes_one_warning(
    text: str, meant: str, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_near_miss.cache_clear()
    for _ in range(3):
        declared_kind(text)
        declared_kind("bad_weather")
    [warning] = caplog.messages
    assert f"failure class {text!r}" in warning and warning.endswith(f"did it mean {meant!r}?")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "rate_limit_error"}, INFRASTRUCTURE),
        ({"type": "overloaded_error"}, INFRASTRUCTURE),
        ({"type": "invalid_request_error", "code": "invalid_api_key"}, CONFIGURATION),
        ({"type": "authentication_error"}, CONFIGURATION),
        ({"code": "model_not_found"}, CONFIGURATION),
        ({"type": "invalid_request_error"}, DATA),
        ({"code": "context_length_exceeded"}, DATA),
        ({"code": 503, "type": "invalid_request_error"}, INFRASTRUCTURE),
        ({"status": "401"}, CONFIGURATION),
        ({"message": "something else"}, INFRASTRUCTURE),
        (None, INFRASTRUCTURE),
    ],
)
def test_error_within_a_stream_has_the_kind_of_the_same_error_before_it(
    error: object, kind: FailureKind
) -> None:
    assert kind_of_status(status_in_stream(error), ENDPOINT) is kind


def test_overload_within_a_stream_shrinks_the_concurrency_limit() -> None:
    for error in ("rate_limit_error", "overloaded_error"):
        assert status_in_stream({"type": error}) in OVERLOAD_STATUSES


@pytest.mark.parametrize("empty", [None, "", 0, False])
def test_empty_class_is_data(empty: object) -> None:
    assert declared_kind(empty) is DATA


@pytest.mark.parametrize("kind", FailureKind)
def test_kind_survives_a_declaration_a_header_json_and_pickling(kind: FailureKind) -> None:
    assert declared_kind(kind.value) is declared_kind(json.loads(json.dumps(kind))) is kind
    assert kind_in_header(kind.value) is kind
    assert pickle.loads(pickle.dumps(kind)) is kind


def test_unknown_kind_in_a_header_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    assert [kind_in_header(name) for name in ("of_the_future", "of_the_future", None)] == [None] * 3
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "unknown failure class 'of_the_future'" in record.getMessage()


@pytest.mark.parametrize(
    ("status", "kinds"),
    [
        (400, (DATA, DATA, DATA, DATA)),
        (401, (DATA, DATA, CONFIGURATION, DATA)),
        (403, (DATA, DATA, CONFIGURATION, DATA)),
        (404, (DATA, DATA, CONFIGURATION, DATA)),
        (408, (INFRASTRUCTURE,) * 4),
        (422, (DATA, DATA, DATA, DATA)),
        (425, (INFRASTRUCTURE, INFRASTRUCTURE, INFRASTRUCTURE, DATA)),
        (429, (INFRASTRUCTURE,) * 4),
        (500, (INFRASTRUCTURE, DATA, INFRASTRUCTURE, INFRASTRUCTURE)),
        (501, (INFRASTRUCTURE, DATA, INFRASTRUCTURE, INFRASTRUCTURE)),
        *((status, (INFRASTRUCTURE,) * 4) for status in (502, 503, 504, 520, 529)),
    ],
)
def test_kind_of_a_status_depends_on_who_sent_it(status: int, kinds: tuple[FailureKind, ...]) -> None:
    assert tuple(kind_of_status(status, boundary) for boundary in Boundary) == kinds


def test_529_is_handled_like_503() -> None:
    for statuses in (RATE_LIMIT_STATUSES, RETRIED_STATUSES, OVERLOAD_STATUSES):
        assert (503 in statuses) and (529 in statuses)
    assert set(OVERLOAD_STATUSES) == {429, 503, 529}
    assert {status for status in STATUS_RULES if charge_of_status(status) is Charge.NEVER} == {429}


def error_body(**error: Any) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    "body",
    [
        error_body(code="model_not_found", message="no"),
        error_body(code="DeploymentNotFound", message="The API deployment does not exist"),
        error_body(code=400, message="The model `gpt-99` does not exist or you do not have access to it."),
        error_body(message="model 'llama9' not found, try pulling it first"),
        error_body(message="Invalid model name passed in model=gpt-99"),
        error_body(message="Model not found: gpt-99"),
        b'{"object": "error", "message": "some/thing is not a valid model ID"}',
        b'{"error": "Unknown model gpt-99"}',
        b"the requested model x could not be found",
    ],
)
def test_400_of_an_endpoint_that_does_not_have_the_model_is_configuration(body: bytes) -> None:
    assert kind_of_response(400, body, ENDPOINT) is CONFIGURATION
    assert kind_of_response(400, body, CALL) is kind_of_response(400, body, SERVER_CODE) is DATA


@pytest.mark.parametrize(
    "body",
    [
        error_body(code="context_length_exceeded", message="This model's maximum context length is 4096"),
        error_body(message="The model does not support this parameter"),
        error_body(message="Invalid model output format: the schema was not found"),
        error_body(message="Unsupported value: " + "x" * 600 + " model y does not exist"),
        error_body(message=None),
        b"",
        b"[" * 100_000,
        b"null",
    ],
)
def test_other_400_of_an_endpoint_is_data(body: bytes) -> None:
    assert kind_of_response(400, body, ENDPOINT) is DATA


def test_404_of_an_endpoint_about_one_request_is_data() -> None:
    body = error_body(code="previous_response_not_found", message="no")
    assert kind_of_response(404, body, ENDPOINT) is DATA
    assert kind_of_response(404, b"404 page not found", ENDPOINT) is CONFIGURATION


def unresolved(errno: int) -> aiohttp.ClientConnectorError:
    key = ConnectionKey("nowhere", 80, False, True, None, None, None)
    return aiohttp.ClientConnectorError(key, socket.gaierror(errno, "no such host"))


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (aiohttp.ClientConnectionError("gone"), (INFRASTRUCTURE,) * 4),
        (aiohttp.ClientPayloadError("cut"), (INFRASTRUCTURE,) * 4),
        (TimeoutError("late"), (INFRASTRUCTURE, DATA, INFRASTRUCTURE, INFRASTRUCTURE)),
        (ConnectionResetError("reset"), (INFRASTRUCTURE, DATA, INFRASTRUCTURE, INFRASTRUCTURE)),
        (FileNotFoundError("a file"), (INFRASTRUCTURE, DATA, INFRASTRUCTURE, DATA)),
        (ConfigError("no such server"), (INFRASTRUCTURE, DATA, INFRASTRUCTURE, DATA)),
        (JudgeError("no verdict"), (JUDGE_FAILED, JUDGE_FAILED, DATA, JUDGE_FAILED)),
        (ValueError("a bug"), (DATA,) * 4),
        (unresolved(socket.EAI_NONAME), (INFRASTRUCTURE, INFRASTRUCTURE, CONFIGURATION, INFRASTRUCTURE)),
        (unresolved(socket.EAI_AGAIN), (INFRASTRUCTURE,) * 4),
    ],
    ids=repr,
)
def test_kind_of_an_exception_depends_on_where_it_was_caught(
    error: Exception, kinds: tuple[FailureKind, ...]
) -> None:
    assert tuple(kind_of_exception(error, boundary) for boundary in Boundary) == kinds


@pytest.mark.parametrize("kind", FailureKind)
def test_exception_that_carries_a_kind_keeps_it_everywhere(kind: FailureKind) -> None:
    error = pickle.loads(pickle.dumps(ServerUnreachableError("it", "gone", kind)))
    assert {kind_of_exception(error, boundary) for boundary in Boundary} == {kind}


def test_no_class_has_two_kinds_at_one_boundary() -> None:
    for boundary in Boundary:
        names = [name for rule in EXCEPTION_RULES if boundary in rule.boundaries for name in rule.names]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no key", "code": "x"}}', "no key"),
        (b'{"error": "no key"}', "no key"),
        (b'{"object": "error", "message": "no key"}', "no key"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"detail": {"message": "no key"}}', "no key"),
        (b'{"detail": [{"msg": "no key"}]}', '{"detail": [{"msg": "no key"}]}'),
        (b'{"reason": "no key"}', '{"reason": "no key"}'),
        (b"not JSON", "not JSON"),
    ],
)
def test_what_an_error_says_is_found_or_quoted(body: bytes, message: str) -> None:
    assert endpoint_error(body).message == message
