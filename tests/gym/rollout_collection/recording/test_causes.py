"""Failures as the ledger groups them: by cause, in short form."""

import json

import pytest

from nemo_gym.failures import AnyKind, DeclaredKind, FailureKind
from nemo_gym.http import ClientResponse, ServerCallError
from nemo_gym.records import Key
from nemo_gym.rollout_collection.outcome import Failure
from nemo_gym.rollout_collection.recording.causes import Causes, cause_of
from tests.support.scripted_agent import Playground, records_of

Capture = pytest.CaptureFixture[str]
DATA, INFRASTRUCTURE = FailureKind.DATA, FailureKind.INFRASTRUCTURE
LONGEST_MESSAGE = 2000


def refusal(
    url: str, status: int, body: str, server: str, first_status: int | None = None
) -> ServerCallError:
    headers = (
        ("x-nemo-gym-failure-server", server),
        ("x-nemo-gym-failure-status", str(first_status or status)),
    )
    return ServerCallError(ClientResponse(status, headers, body.encode(), url=url))


def nested(error: Exception, server: str, status: int, url: str = "agent/run") -> str:
    """The message of an error that passed through the agent, as the collector records it."""
    return str(refusal(url, 500, json.dumps(repr(error)), server, status))[:LONGEST_MESSAGE]


def missing(*fields: str, quoted: object = "hi") -> str:
    errors = [
        {"type": "missing", "loc": ["body", one], "msg": "Field required", "input": quoted} for one in fields
    ]
    return json.dumps({"detail": errors})


CONTEXT = "This model's maximum context length is 4096 tokens, but your messages have {} tokens."
OPENAI = {
    "error": {"message": CONTEXT.format(5012), "type": "invalid_request_error", "code": "context_length"}
}
VERIFY = "calculator/verify"


@pytest.mark.parametrize(
    ("kind", "error_type", "message", "cause"),
    [
        (
            DATA,
            "ServerCallError",
            nested(refusal(VERIFY, 422, missing("expected_answer"), "calculator"), "calculator", 422),
            "data: calculator/verify 422: expected_answer: Field required",
        ),
        (
            DATA,
            "ServerCallError",
            nested(
                refusal(VERIFY, 422, missing("a", "b", quoted={"x": 'it\'s "quoted" ' * 500}), "calculator"),
                "calculator",
                422,
            ),
            "data: calculator/verify 422: a: Field required",
        ),
        (
            DATA,
            "ServerCallError",
            nested(
                refusal("http://127.0.0.1:41233/verify", 422, missing("a", "b"), "calculator"),
                "calculator",
                422,
            ),
            "data: calculator/verify 422: a: Field required; b: Field required",
        ),
        (
            DATA,
            "ServerCallError",
            str(refusal("agent/run", 422, missing("responses_create_params"), "agent")),
            "data: agent/run 422: responses_create_params: Field required",
        ),
        (
            DATA,
            "ServerCallError",
            nested(
                refusal("policy_model/v1/responses", 400, json.dumps(OPENAI), "policy_model"),
                "policy_model",
                400,
            ),
            f"data: policy_model/v1/responses 400: {CONTEXT.format(5012)}",
        ),
        (
            INFRASTRUCTURE,
            "ServerCallError",
            nested(
                refusal(
                    "m/v1/responses", 502, "<html><title>502 Bad Gateway</title>\n<b>nginx</b></html>", "m"
                ),
                "m",
                502,
            ),
            "infrastructure: m/v1/responses 502: 502 Bad Gateway nginx",
        ),
        (
            DATA,
            "ServerCallError",
            nested(
                refusal(VERIFY, 500, json.dumps(repr(ZeroDivisionError("division by zero"))), "calculator"),
                "calculator",
                500,
            ),
            "data: calculator/verify 500: ZeroDivisionError: division by zero",
        ),
        (
            INFRASTRUCTURE,
            "ServerCallError",
            str(refusal("agent/run", 500, "\"ServerUnreachableError('m: connection refused')\"", "m", 503)),
            "infrastructure: m: connection refused",
        ),
        (
            FailureKind.TIMEOUT,
            "TimeoutError",
            "not finished after 3600 s; last activity: 312 s in model call 7",
            "timeout: not finished after 3600 s; last activity: 312 s in model call 7",
        ),
        (
            INFRASTRUCTURE,
            "WorkerDied",
            "3 workers died with this rollout",
            "infrastructure: 3 workers died with this rollout",
        ),
        (
            DATA,
            "InvalidRollout",
            "the rollout has no numeric reward: reward is None",
            "data: the rollout has no numeric reward: reward is None",
        ),
        (
            FailureKind.JUDGE_FAILED,
            "AgentFailure",
            "agent declared this rollout failed (judge_failed): JudgeError: no verdict",
            "judge_failed: JudgeError: no verdict",
        ),
        (
            DeclaredKind("unsafe\x1b[2J"),
            "AgentFailure",
            "agent declared this rollout failed (unsafe): no\nreason\x1b[31m given",
            "unsafe: no reason given",
        ),
        (DATA, "KeyError", "'answer'", "data: KeyError: 'answer'"),
        (DATA, "ServerCallError", "POST agent/run: 500: ", "data: agent/run 500: "),
    ],
)
def test_cause_is_what_the_first_failing_server_said(
    kind: AnyKind, error_type: str, message: str, cause: str
) -> None:
    assert str(cause_of(kind, error_type, message)) == cause.strip().removesuffix(":")


def counted(*messages: str, error_type: str = "Error") -> Causes:
    causes = Causes()
    for number, message in enumerate(messages):
        causes.take(Failure(Key(number, 0), {"name": "agent"}, DATA, error_type, message))
    return causes


def test_values_that_differ_per_row_do_not_split_a_cause() -> None:
    lines = counted(
        *(CONTEXT.format(number) for number in range(5000, 5010)),
        "no such row 'apple' in request req_0a8f31bc",
        "no such row 'it is a pear' in request req_99aa0012",
        "no such table",
    ).lines()
    assert lines == [
        f"10 x data: Error: {CONTEXT.format(5000)}",
        "2 x data: Error: no such row 'apple' in request req_0a8f31bc",
        "1 x data: Error: no such table",
    ]
    assert len(counted("'a'", "'b'", error_type="KeyError").lines()) == 2


def test_at_most_five_causes_are_shown_and_the_others_counted() -> None:
    names = ["apples", "pears", "plums", "figs", "dates", "kiwis", "limes"]
    lines = counted(*names, "limes").lines()
    assert lines[0] == "2 x data: Error: limes" and len(lines) == 6
    assert lines[-1] == "and 2 other causes"
    assert counted(*names[:6]).lines()[-1] == "and 1 other cause"


def test_report_of_a_run_names_the_missing_field_and_the_failures_file_keeps_the_whole_message(
    playground: Playground, capsys: Capture
) -> None:
    body = missing("expected_answer", quoted="long " * 300)
    for key in ("0:0", "1:0", "2:0"):
        playground.set_response(key, body, status=422)
    playground.collect()
    assert "\n  3 x data: scripted/run 422: expected_answer: Field required\n" in capsys.readouterr().err
    assert all("long long long" in one["error_message"] for one in records_of(playground.failures))
