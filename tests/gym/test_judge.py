import asyncio
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException, Request

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer
from nemo_gym.base_responses_api_model import SimpleResponsesAPIModel
from nemo_gym.client import ServerClient
from nemo_gym.failures import Boundary, FailureKind, kind_of_exception
from nemo_gym.http import ClientResponse, ServerUnreachableError
from nemo_gym.judge import JudgeError, call_judge, judge_failsafe, reraise_judge_errors
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from scripts.scripted_endpoint import message
from tests.gym.servers.kinds import World

ROW = {
    "responses_create_params": {"input": "q"},
    "response": {"output": [message("a")]},
    "task": {"deep": [1, None, "ü"], "big": 2**80},
}


class Judge(SimpleResponsesAPIModel):
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> dict[str, Any]:
        return {"output": [message(f"you said {body.input}")]}

    async def chat_completions(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": "chat"}}]}


class DeafJudge(SimpleResponsesAPIModel):
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> dict[str, Any]:
        raise HTTPException(503, "the judge is asleep")


class Rambler(SimpleResponsesAPIModel):
    async def responses(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"no": "output"}

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        self.setup_session_middleware(app)
        app.post("/v1/responses")(self.responses)
        return app


def judged_by(judge: type[SimpleResponsesAPIModel], *args: Any, **options: Any) -> Any:
    world = World()
    world.add("judge", judge)
    return asyncio.run(call_judge(world.client, "judge", {"input": "x"}, *args, **options))


def test_judge_returns_a_response() -> None:
    response = judged_by(Judge)
    assert isinstance(response, NeMoGymResponse)
    assert response.output_text == "you said x"


def test_judge_request_can_use_another_format() -> None:
    response = judged_by(Judge, NeMoGymChatCompletion, url_path="/v1/chat/completions")
    assert response.choices[0].message.content == "chat"


def test_judge_request_can_name_the_response_model_as_published() -> None:
    model = NeMoGymChatCompletion
    published = judged_by(Judge, url_path="/v1/chat/completions", response_model=model)
    ours = judged_by(Judge, url_path="/v1/chat/completions", response_type=model)
    assert isinstance(published, model) and published.choices == ours.choices


def test_judge_gets_cookies_only_if_there_are_any() -> None:
    class Client(ServerClient):
        async def post(self, **options: Any) -> ClientResponse:  # type: ignore[override]
            calls.append(options)
            return ClientResponse(200, (), b'{"output": []}')

    calls: list[dict[str, Any]] = []
    call = {"server_name": "judge", "url_path": "/v1/responses", "json": {"input": "x"}}
    asyncio.run(call_judge(Client(), **call))
    asyncio.run(call_judge(Client(), **call, cookies={"a": "b"}))
    assert calls == [call, {**call, "cookies": {"a": "b"}}]


@pytest.mark.parametrize("judge", [DeafJudge, Rambler])
def test_judge_without_a_verdict_is_a_judge_error(judge: type[SimpleResponsesAPIModel]) -> None:
    with pytest.raises(JudgeError) as caught:
        judged_by(judge)
    assert caught.value.__cause__ is not None


def test_judge_error_says_what_happened() -> None:
    with pytest.raises(JudgeError, match=r"503.*the judge is asleep"):
        judged_by(DeafJudge)


def test_judge_that_does_not_exist_is_a_judge_error() -> None:
    with pytest.raises(JudgeError, match="no server is named 'judge'"):
        asyncio.run(call_judge(World().client, "judge", {"input": "x"}))


def test_judge_error_is_raised_unchanged() -> None:
    original = JudgeError("first")

    async def fail() -> None:
        raise original

    with pytest.raises(JudgeError) as caught:
        asyncio.run(reraise_judge_errors(fail()))
    assert caught.value is original


def test_cancellation_is_not_a_judge_error() -> None:
    async def run() -> None:
        call = asyncio.create_task(reraise_judge_errors(asyncio.Event().wait()))
        await asyncio.sleep(0)
        call.cancel()
        await call

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())


class AsyncVerifier(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> dict[str, Any]:
        raise JudgeError("no verdict")


class SyncVerifier(SimpleResourcesServer):
    def verify(self, body: BaseVerifyRequest) -> dict[str, Any]:
        raise JudgeError("no verdict")


class VerifierWithRequest(SimpleResourcesServer):
    async def verify(self, request: Request, body: BaseVerifyRequest) -> dict[str, Any]:
        raise JudgeError("no verdict")


class DictVerifier(SimpleResourcesServer):
    async def verify(self, body: dict[str, Any]) -> dict[str, Any]:
        raise JudgeError("no verdict")


class DecoratedVerifier(SimpleResourcesServer):
    @judge_failsafe
    async def verify(self, body: BaseVerifyRequest) -> dict[str, Any]:
        raise JudgeError("no verdict")


class DecoratedSyncVerifier(SimpleResourcesServer):
    @judge_failsafe
    def verify(self, request: Request, body: BaseVerifyRequest) -> dict[str, Any]:
        raise JudgeError("no verdict")


VERIFIERS = [
    AsyncVerifier,
    SyncVerifier,
    VerifierWithRequest,
    DictVerifier,
    DecoratedVerifier,
    DecoratedSyncVerifier,
]


def verify(verifier: type[SimpleResourcesServer], row: Any, **options: Any) -> ClientResponse:
    world = World()
    world.add("it", verifier)
    return asyncio.run(world.client.post("it", "/verify", json=row, **options))


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_judge_error_in_a_verifier_is_filed_with_the_row(verifier: type[SimpleResourcesServer]) -> None:
    response = verify(verifier, ROW)
    assert response.status == 200
    assert asyncio.run(response.json()) == ROW | {
        "reward": 0.0,
        "_ng_failure_class": "judge_failed",
        "_ng_failure_judge_error": "no verdict",
    }


def test_judge_error_is_recorded_for_a_row_with_non_finite_numbers() -> None:
    text = (
        b'{"responses_create_params": {"input": "q"}, "response": {"output": []}, "odd": NaN, "h": "\\ud83d"}'
    )
    response = verify(AsyncVerifier, None, data=text, headers={"Content-Type": "application/json"})
    assert response.status == 200
    recorded = asyncio.run(response.json())
    assert (recorded["odd"], recorded["h"], recorded["reward"]) == (None, "\ud83d", 0.0)
    assert b"NaN" not in response._body


def test_other_errors_of_a_verifier_are_not_filed_as_the_judges() -> None:
    class Broken(SimpleResourcesServer):
        async def verify(self, body: BaseVerifyRequest) -> dict[str, Any]:
            raise ValueError("a bug")

    response = verify(Broken, ROW)
    assert response.status == 500
    assert b"judge" not in response._body


def test_verdict_passes_untouched() -> None:
    class Fine(SimpleResourcesServer):
        async def verify(self, body: BaseVerifyRequest) -> dict[str, Any]:
            return body.model_dump(exclude_unset=True) | {"reward": 0.5}

    assert asyncio.run(verify(Fine, ROW).json()) == ROW | {"reward": 0.5}


def test_decorated_verifier_can_be_called_directly() -> None:
    world = World()
    server = world.add("it", DecoratedVerifier)
    body = BaseVerifyRequest.model_validate(ROW)
    response = asyncio.run(server.verify(body))
    assert b'"task"' in response.body
    assert b"entrypoint" not in response.body


def test_wrong_key_of_a_judge_keeps_its_kind_and_failures_of_its_calls_are_counted() -> None:
    refused = ServerUnreachableError("judge", "no such host", FailureKind.CONFIGURATION)
    failed = ServerUnreachableError("judge", "broken", failure_count=6)

    async def fail(error: Exception) -> None:
        raise error

    def judged(error: Exception) -> JudgeError:
        with pytest.raises(JudgeError) as raised:
            asyncio.run(reraise_judge_errors(fail(error)))
        return raised.value

    assert kind_of_exception(judged(refused), Boundary.SERVER_CODE) == "configuration"
    assert kind_of_exception(judged(failed), Boundary.SERVER_CODE) == "judge_failed"
    assert judged(failed).failure_count == 6

    errors = {"refused": judged(refused), "failed": judged(failed)}

    @judge_failsafe
    async def verify_row(body: dict[str, Any]) -> None:
        raise errors[body["task"]]

    assert b'"_ng_failure_class":"configuration"' in asyncio.run(verify_row({"task": "refused"})).body
    body = asyncio.run(verify_row({"task": "failed"})).body
    assert b'"_ng_failure_class":"judge_failed"' in body and b'"_ng_failure_count":6' in body
