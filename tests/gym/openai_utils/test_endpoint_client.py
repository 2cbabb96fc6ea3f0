import asyncio
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from nemo_gym.http import RetryPolicy, ServerUnreachableError
from nemo_gym.openai_utils import NeMoGymAsyncOpenAI
from scripts.scripted_endpoint import ScriptedEndpoint, message

QUICK = RetryPolicy(base_delay_s=0.001, statuses=(429, 500, 502, 503))
RESPONSE = {"id": "r", "status": "completed", "output": [message("hi")]}
CHUNKS = [
    {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "h"}}]},
    {"id": "c", "choices": [{"index": 0, "delta": {"content": "i"}, "finish_reason": "stop"}]},
]
COMPLETED = {"type": "response.completed", "response": RESPONSE}


def stream(*events: Any, end: bytes = b"data: [DONE]\n\n", kind: str = "text/event-stream") -> web.Response:
    body = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + end
    return web.Response(body=body, headers={"Content-Type": kind})


class Asked:
    """What came of one call to an endpoint that gives these answers in turn, the last one for ever."""

    def __init__(self, *answers: web.Response, chat: bool = False, **options: Any) -> None:
        left = list(answers)

        def script(request: dict[str, Any]) -> web.Response:
            given = left.pop(0) if len(left) > 1 else left[0]
            return web.Response(status=given.status, body=given.body, headers=given.headers)

        with ScriptedEndpoint(script) as endpoint:
            client = NeMoGymAsyncOpenAI(endpoint.base_url, "k", **{"retry": QUICK, **options})
            self.answer: Any = None
            self.error: Any = None
            call = client.create_chat_completion if chat else client.create_response
            try:
                self.answer = asyncio.run(call(model="m", input="x"))
            except aiohttp.ClientError as error:
                self.error = error
            self.tries = len(endpoint.requests)


def test_streamed_response_is_put_together() -> None:
    asked = Asked(stream({"type": "response.created"}, COMPLETED, end=b""))
    assert (asked.answer, asked.tries) == (RESPONSE, 1)


def test_streamed_chat_answer_is_put_together() -> None:
    kind = "Text/Event-Stream; charset=utf-8"
    assert Asked(stream(*CHUNKS, kind=kind), chat=True).answer["choices"][0]["message"]["content"] == "hi"


def test_json_that_calls_itself_a_stream_is_taken_as_json() -> None:
    assert Asked(stream(end=orjson.dumps(RESPONSE))).answer == RESPONSE


@pytest.mark.parametrize("chat", [True, False])
def test_stream_that_breaks_off_is_asked_for_again(chat: bool) -> None:
    whole = stream(*CHUNKS) if chat else stream(COMPLETED)
    broken = stream(CHUNKS[0], end=b"") if chat else stream({"type": "response.created"}, end=b"")
    cut = stream(end=b'data: {"type": "response.comp')
    asked = Asked(broken, cut, whole, chat=chat)
    assert (asked.tries, asked.error) == (3, None)


def test_stream_that_breaks_off_every_time_is_a_failure_of_the_endpoint() -> None:
    asked = Asked(stream(CHUNKS[0]), chat=True)
    assert isinstance(asked.error, ServerUnreachableError)
    assert "broke off" in str(asked.error)
    assert asked.tries == 3


@pytest.mark.parametrize(
    ("error", "status", "tries"),
    [
        ({"message": "no", "code": 400}, 400, 1),
        ({"message": "no", "code": "context_length_exceeded"}, 400, 1),
        ({"message": "no", "type": "invalid_request_error"}, 400, 1),
        ({"message": "no", "code": "500"}, 500, 3),
        ({"message": "no", "code": "server_error"}, 502, 3),
        ("no", 502, 3),
    ],
)
def test_error_within_a_stream_is_that_of_the_call(error: Any, status: int, tries: int) -> None:
    asked = Asked(stream(CHUNKS[0], {"error": error}), chat=True)
    assert (asked.error.status, asked.tries) == (status, tries)
    assert orjson.loads(asked.error.response_content) == {"error": error}


def test_rate_limit_within_a_stream_is_waited_for() -> None:
    limited = stream({"type": "error", "code": "rate_limit_exceeded", "message": "slow down"})
    asked = Asked(*[limited] * 5, stream(COMPLETED))
    assert (asked.answer, asked.tries) == (RESPONSE, 6)


def test_stream_that_makes_no_sense_is_a_502() -> None:
    asked = Asked(stream({"choices": 7}), chat=True, max_tries=1)
    assert asked.error.status == 502
    assert asked.error.kind == "infrastructure"
    assert b"stream cannot be read" in asked.error.response_content


def test_stream_on_a_route_that_has_none_is_a_502() -> None:
    async def run() -> None:
        async def answer(request: web.Request) -> web.Response:
            return stream(*CHUNKS)

        app = web.Application()
        app.router.add_post("/v1/completions", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        with pytest.raises(aiohttp.ClientResponseError, match="stream") as raised:
            await NeMoGymAsyncOpenAI(url, "k", max_tries=1).create_completion(prompt="p")
        await runner.cleanup()
        assert raised.value.status == 502

    asyncio.run(run())


def test_error_status_with_a_stream_is_handed_on() -> None:
    refusal = web.Response(status=400, text="data: no\n\n", content_type="text/event-stream")
    assert Asked(refusal).error.response_content == b"data: no\n\n"


@pytest.mark.parametrize("tries", [1, 2, 5])
def test_failing_call_is_made_as_often_as_configured(tries: int) -> None:
    asked = Asked(web.Response(status=503), max_tries=tries)
    assert (asked.error.status, asked.tries) == (503, tries)


def test_time_of_a_request_includes_its_retries() -> None:
    asked = Asked(web.Response(status=429, headers={"Retry-After": "0.05"}), request_timeout_s=0.3)
    assert asked.error.status == 429  # which alone would be retried without end


def test_answer_that_never_comes_is_given_up_in_time() -> None:
    async def script(request: dict[str, Any]) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with ScriptedEndpoint(script) as endpoint:
        client = NeMoGymAsyncOpenAI(endpoint.base_url, "k", request_timeout_s=0.1)
        with pytest.raises(ServerUnreachableError, match=r"no answer in 0\.1 s"):
            asyncio.run(client.create_response(model="m", input="x"))


@pytest.mark.parametrize("text", ['{"output": "\\ud800"}', '{"output": "\\ud83d\\ude00", "n": NaN}'])
def test_answers_that_only_some_codecs_read_are_read(text: str) -> None:
    assert Asked(web.Response(text=text)).answer["output"] in ("\ud800", "\U0001f600")
