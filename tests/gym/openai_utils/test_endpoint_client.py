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


class Call:
    """The result of one call to an endpoint that sends these responses in turn and repeats the last one."""

    def __init__(self, *responses: web.Response, chat: bool = False, **options: Any) -> None:
        remaining = list(responses)

        def script(request: dict[str, Any]) -> web.Response:
            response = remaining.pop(0) if len(remaining) > 1 else remaining[0]
            return web.Response(status=response.status, body=response.body, headers=response.headers)

        with ScriptedEndpoint(script) as endpoint:
            client = NeMoGymAsyncOpenAI(endpoint.base_url, "k", **{"retry": QUICK, **options})
            self.result: Any = None
            self.error: Any = None
            create = client.create_chat_completion if chat else client.create_response
            try:
                self.result = asyncio.run(create(model="m", input="x"))
            except aiohttp.ClientError as error:
                self.error = error
            self.tries = len(endpoint.requests)


def test_streamed_response_is_assembled() -> None:
    call = Call(stream({"type": "response.created"}, COMPLETED, end=b""))
    assert (call.result, call.tries) == (RESPONSE, 1)


def test_streamed_chat_completion_is_assembled() -> None:
    kind = "Text/Event-Stream; charset=utf-8"
    assert Call(stream(*CHUNKS, kind=kind), chat=True).result["choices"][0]["message"]["content"] == "hi"


def test_json_with_the_content_type_of_a_stream_is_read_as_json() -> None:
    assert Call(stream(end=orjson.dumps(RESPONSE))).result == RESPONSE


@pytest.mark.parametrize("chat", [True, False])
def test_stream_that_ends_early_is_retried(chat: bool) -> None:
    whole = stream(*CHUNKS) if chat else stream(COMPLETED)
    broken = stream(CHUNKS[0], end=b"") if chat else stream({"type": "response.created"}, end=b"")
    cut = stream(end=b'data: {"type": "response.comp')
    call = Call(broken, cut, whole, chat=chat)
    assert (call.tries, call.error) == (3, None)


def test_stream_that_ends_early_every_time_is_a_failure_of_the_endpoint() -> None:
    call = Call(stream(CHUNKS[0]), chat=True)
    assert isinstance(call.error, ServerUnreachableError)
    assert "the stream ended" in str(call.error)
    assert call.tries == 3


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
def test_error_within_a_stream_is_the_error_of_the_call(error: Any, status: int, tries: int) -> None:
    call = Call(stream(CHUNKS[0], {"error": error}), chat=True)
    assert (call.error.status, call.tries) == (status, tries)
    assert orjson.loads(call.error.response_content) == {"error": error}


def test_rate_limit_within_a_stream_is_retried() -> None:
    limited = stream({"type": "error", "code": "rate_limit_exceeded", "message": "slow down"})
    call = Call(*[limited] * 5, stream(COMPLETED))
    assert (call.result, call.tries) == (RESPONSE, 6)


def test_unreadable_stream_is_a_502() -> None:
    call = Call(stream({"choices": 7}), chat=True, max_tries=1)
    assert call.error.status == 502
    assert call.error.kind == "infrastructure"
    assert b"stream cannot be read" in call.error.response_content


def test_stream_from_a_route_without_streaming_is_a_502() -> None:
    async def run() -> None:
        async def complete(request: web.Request) -> web.Response:
            return stream(*CHUNKS)

        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        with pytest.raises(aiohttp.ClientResponseError, match="stream") as raised:
            await NeMoGymAsyncOpenAI(url, "k", max_tries=1).create_completion(prompt="p")
        await runner.cleanup()
        assert raised.value.status == 502

    asyncio.run(run())


def test_body_of_an_error_status_is_passed_on_unread() -> None:
    refusal = web.Response(status=400, text="data: no\n\n", content_type="text/event-stream")
    assert Call(refusal).error.response_content == b"data: no\n\n"


@pytest.mark.parametrize("tries", [1, 2, 5])
def test_failing_call_is_made_at_most_max_tries_times(tries: int) -> None:
    call = Call(web.Response(status=503), max_tries=tries)
    assert (call.error.status, call.tries) == (503, tries)


def test_request_timeout_does_not_include_the_delays_between_retries() -> None:
    limited = web.Response(status=429, headers={"Retry-After-Ms": "1100"})
    call = Call(limited, stream(COMPLETED), request_timeout_s=1)
    assert (call.result, call.tries) == (RESPONSE, 2)


def test_request_without_a_response_times_out() -> None:
    async def script(request: dict[str, Any]) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with ScriptedEndpoint(script) as endpoint:
        client = NeMoGymAsyncOpenAI(endpoint.base_url, "k", request_timeout_s=0.1, max_tries=1)
        with pytest.raises(ServerUnreachableError, match=r"no response within 0\.1 s"):
            asyncio.run(client.create_response(model="m", input="x"))


@pytest.mark.parametrize("text", ['{"output": "\\ud800"}', '{"output": "\\ud83d\\ude00", "n": NaN}'])
def test_responses_with_lone_surrogates_or_nan_are_read(text: str) -> None:
    assert Call(web.Response(text=text)).result["output"] in ("\ud800", "\U0001f600")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirect_is_not_followed_and_names_its_target(status: int) -> None:
    call = Call(web.Response(status=status, headers={"Location": "http://user:secret@other.example/v1?k=1"}))
    assert call.tries == 1
    assert call.error.status == 502 and call.error.kind == "configuration"
    assert "redirects to http://other.example/v1;" in str(call.error)
    assert "base URL" in str(call.error) and "secret" not in str(call.error)
