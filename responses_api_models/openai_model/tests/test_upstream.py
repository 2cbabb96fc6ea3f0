"""Endpoints that have only one of the two APIs, that stream, or that report no usage."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from nemo_gym.openai_utils import NeMoGymAsyncOpenAI, NeMoGymResponseUsage
from nemo_gym.server_utils import ClientResponse, ServerClient
from responses_api_models.openai_model.app import OpenAIModel, OpenAIModelConfig
from responses_api_models.openai_model.tests.model_server import (
    CHAT,
    HI,
    SETTINGS,
    USAGE,
    Json,
    ModelServer,
    chat_only,
    completion,
    json_response,
    missing,
    open_model_server,
    responses_only,
    warnings_in,
)
from responses_api_models.openai_model.upstream import is_missing_route
from scripts.scripted_endpoint import ScriptedEndpoint, message
from tests.support.waiting import until


def test_responses_are_had_from_an_endpoint_that_only_chats() -> None:
    with open_model_server(chat_only, upstream_api="chat_completions") as it:
        response = it.post_ok({"input": "x", "max_output_tokens": 7, "seed": 3})
    sent = {"messages": HI["messages"], "model": "mine", "max_completion_tokens": 7, "seed": 3}
    assert it.requests == [sent]
    assert response["output"][0]["content"][0]["text"] == "hi"
    assert (response["status"], response["usage"]["input_tokens"]) == ("completed", 3)


def test_chats_are_had_from_an_endpoint_that_only_has_responses() -> None:
    with open_model_server(responses_only, upstream_api="responses") as it:
        chat = it.post_ok({**HI, "max_tokens": 7}, CHAT)
    assert it.apis == ["responses"]
    assert it.requests[0]["max_output_tokens"] == 7
    assert chat["choices"][0]["message"]["content"] == "hi"
    assert chat["usage"]["prompt_tokens"] == 10


@pytest.mark.parametrize("status", [404, 405, 501])
def test_missing_route_switches_to_the_other_api_once(status: int, caplog: pytest.LogCaptureFixture) -> None:
    def script(request: Json) -> web.Response:
        return json_response(completion()) if "messages" in request else missing(status)

    with open_model_server(script) as it:
        for _ in range(3):
            assert it.post_ok({"input": "x"})["output"][0]["content"][0]["text"] == "hi"
        assert it.apis == ["responses", "chat", "chat", "chat"]
    (warning,) = warnings_in(caplog)
    assert f"policy_model: the endpoint responds with {status} on its responses route" in warning
    assert "upstream_api: chat_completions" in warning


def test_missing_chat_route_switches_to_responses() -> None:
    with open_model_server(responses_only) as it:
        assert it.post_ok(HI, CHAT)["choices"][0]["message"]["content"] == "hi"
        it.post_ok(HI, CHAT)
        it.post_ok({"input": "x"})
        assert it.apis == ["chat", "responses", "responses", "responses"]


def test_error_is_unchanged_if_the_other_api_is_missing() -> None:
    def script(request: Json) -> web.Response:
        return web.Response(status=404, text="no such model" if "input" in request else "no such page")

    with open_model_server(script) as it:
        for _ in range(2):
            response = asyncio.run(it.post({"input": "x"}))
            assert (response.status, asyncio.run(response.text())) == (404, "no such model")
            assert response.headers["x-nemo-gym-failure-kind"] == "configuration"
        assert it.apis == ["responses", "chat"] * 2


def kind_of(response: ClientResponse) -> str:
    return response.headers["x-nemo-gym-failure-kind"]


@pytest.mark.parametrize("status", [404, 405, 501])
def test_endpoint_without_either_route_is_misconfigured(status: int) -> None:
    with open_model_server(lambda request: missing(status)) as it:
        response = asyncio.run(it.post({"input": "x"}))
    assert (response.status, kind_of(response)) == (status, "configuration")


def test_missing_route_of_a_server_that_names_the_kind_keeps_that_kind() -> None:
    headers = {"x-nemo-gym-failure-kind": "data"}  # as replay_model sends for a request it did not record
    with open_model_server(
        lambda request: web.Response(status=404, text="not recorded", headers=headers)
    ) as it:
        assert kind_of(asyncio.run(it.post({"input": "x"}))) == "data"
        assert it.apis == ["responses", "chat"]


def test_404_of_the_only_route_in_use_is_configuration_until_it_has_responded() -> None:
    model = web.json_response({"message": "The model `x` does not exist."}, status=404)
    replies: Iterator[Any] = iter([missing(), json_response(completion()), missing(), model])
    with open_model_server(lambda request: next(replies), upstream_api="chat_completions") as it:
        responses = [asyncio.run(it.post({"input": "x"})) for _ in range(4)]
    assert [response.status for response in responses] == [404, 200, 404, 404]
    assert [kind_of(responses[n]) for n in (0, 2, 3)] == ["configuration", "data", "configuration"]


class RefusedCalls(NeMoGymAsyncOpenAI):
    """Sets an event when the endpoint has refused `count` calls of its Responses route."""

    def __init__(self, base_url: str, count: int) -> None:
        super().__init__(base_url, "k")
        self.are_all_refused = threading.Event()
        self._left = count

    async def create_response(self, /, **kwargs: Any) -> dict[str, Any]:
        try:
            return await super().create_response(**kwargs)
        except aiohttp.ClientResponseError:
            self._left -= 1
            if not self._left:  # its caller waits for the other route before that responds
                self.are_all_refused.set()
            raise


@contextmanager
def open_server_for_many(count: int, at_chat: Callable[[Json], web.Response]) -> Iterator[ModelServer]:
    """Its endpoint has no Responses route; the other route responds after `count` refused calls."""

    class Counting(OpenAIModel):
        @cached_property
        def endpoint(self) -> RefusedCalls:
            return RefusedCalls(self.config.openai_base_url, count)

    async def script(request: Json) -> web.Response:
        if "input" in request:
            return missing()
        await until(it.model.endpoint.are_all_refused.is_set)
        return at_chat(request)

    with open_model_server(script, Counting) as it:
        yield it


async def post_many(it: ModelServer, count: int) -> list[ClientResponse]:
    return list(await asyncio.gather(*(it.post({"input": "x"}) for _ in range(count))))


def test_requests_that_wait_for_the_other_route_fail_as_infrastructure_if_it_cannot_be_read() -> None:
    with open_server_for_many(3, lambda request: json_response({"choices": []})) as it:
        responses = asyncio.run(post_many(it, 3))
    assert it.apis.count("chat") == 1
    assert sorted(response.status for response in responses) == [404, 404, 502]
    assert {kind_of(response) for response in responses} == {"infrastructure"}


def test_request_that_the_other_route_refuses_does_not_fail_those_that_wait_with_it() -> None:
    def at_chat(request: Json) -> web.Response:
        if request["messages"][0]["content"] == "too long":
            return web.Response(status=400, text="context length exceeded")
        return json_response(completion())

    async def post_all(it: ModelServer) -> list[ClientResponse]:
        inputs = ("too long", "x", "too long", "y")
        return list(await asyncio.gather(*(it.post({"input": one}) for one in inputs)))

    with open_server_for_many(4, at_chat) as it:
        responses = asyncio.run(post_all(it))
    assert [response.status for response in responses] == [400, 200, 400, 200]
    for refused in (responses[0], responses[2]):
        assert kind_of(refused) == "data"
        assert "context length exceeded" in asyncio.run(refused.text())


@pytest.mark.parametrize(("status", "kind"), [(400, "data"), (401, "configuration"), (500, "infrastructure")])
def test_error_of_one_api_is_reported_with_that_of_the_other(status: int, kind: str) -> None:
    def script(request: Json) -> web.Response:
        refused = web.Response(status=status, text="Incorrect API key")
        return missing() if "input" in request else refused

    with open_model_server(script, max_tries=1) as it:
        for response in asyncio.run(post_many(it, 3)):
            text = asyncio.run(response.text())
            assert "chat_completions route: Incorrect API key" in text
            assert "responses route responded with 404: 404 page not found" in text
            assert (response.status, response.headers["x-nemo-gym-failure-kind"]) == (status, kind)


def test_unreadable_response_is_reported_before_the_api_is_known() -> None:
    with open_model_server(
        lambda request: missing() if "input" in request else json_response({"choices": []})
    ) as it:
        response = asyncio.run(it.post({"input": "x"}))
    assert response.status == 502
    assert "no choices" in asyncio.run(response.text())


def test_route_that_has_worked_is_not_doubted_again() -> None:
    responses: Iterator[Any] = iter([[message("hi")], missing(), [message("hi")]])
    with open_model_server(lambda request: next(responses)) as it:
        assert [asyncio.run(it.post({"input": "x"})).status for _ in range(3)] == [200, 404, 200]
        assert it.apis == ["responses"] * 3


def test_error_that_names_a_missing_object_is_not_a_missing_route() -> None:
    body = {"error": {"message": "no such model", "code": "model_not_found"}}
    with open_model_server(lambda request: web.json_response(body, status=404)) as it:
        response = asyncio.run(it.post({"input": "x"}))
        assert (response.status, kind_of(response)) == (404, "configuration")
        assert it.apis == ["responses"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ('{"detail": "Not Found"}', True),
        ('{"error": {"code": 404, "message": "File Not Found"}}', True),
        ('{"error": {"code": "unknown_url"}}', True),
        ('{"error": "not found"}', True),
        ("[]", True),
        ('{"error": {"code": "DeploymentNotFound"}}', False),
        ('{"object": "error", "code": "model_not_found"}', False),
    ],
)
def test_body_of_a_404_decides_whether_a_route_may_be_missing(text: str, expected: bool) -> None:
    with ScriptedEndpoint(lambda request: web.Response(status=404, text=text)) as endpoint:
        client = NeMoGymAsyncOpenAI(endpoint.base_url, "k")
        with pytest.raises(Exception, match="404") as raised:
            asyncio.run(client.create_response(input="x"))
    assert is_missing_route(raised.value) is expected


def test_one_of_many_first_requests_tries_the_other_api(caplog: pytest.LogCaptureFixture) -> None:
    at_chat: list[int] = []
    alone = asyncio.Event()

    async def script(request: Json) -> web.Response:
        if "input" in request:
            return missing()
        at_chat.append(1)
        if len(at_chat) == 1:  # no other request arrives while this one is running
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(at_chat) == 1
            alone.set()
        return json_response(completion())

    with open_model_server(script) as it:
        assert [response.status for response in asyncio.run(post_many(it, 20))] == [200] * 20
        assert (it.apis.count("responses"), it.apis.count("chat")) == (20, 20)
    assert alone.is_set()
    assert len(warnings_in(caplog)) == 1


def test_few_of_many_requests_try_the_other_missing_route() -> None:
    with open_server_for_many(20, lambda request: missing()) as it:
        assert [response.status for response in asyncio.run(post_many(it, 20))] == [404] * 20
    assert (it.apis.count("responses"), it.apis.count("chat")) == (20, 1)


def test_cancelled_trial_is_repeated_by_the_next_call() -> None:
    hanging, second_is_here = threading.Event(), threading.Event()

    async def script(request: Json) -> web.Response:
        if "input" in request:
            if request["input"] == "x":
                second_is_here.set()
            return missing()
        if request["messages"][0]["content"] == "hang":
            hanging.set()
            await asyncio.Event().wait()
        return json_response(completion())

    async def run(it: ModelServer) -> int:
        first = asyncio.create_task(it.post({"input": "hang"}))
        assert await asyncio.to_thread(hanging.wait, 10)
        second = asyncio.create_task(it.post({"input": "x"}))
        assert await asyncio.to_thread(second_is_here.wait, 10)
        first.cancel()
        return (await second).status

    with open_model_server(script) as it:
        assert asyncio.run(run(it)) == 200


def test_request_that_cannot_be_converted_is_refused() -> None:
    with open_model_server(chat_only, upstream_api="chat_completions") as it:
        response = asyncio.run(it.post({"input": "x", "previous_response_id": "r"}))
        text = asyncio.run(response.text())
    assert response.status == 400
    assert "previous_response_id: a Chat Completions endpoint keeps no state" in text
    assert response.headers["x-nemo-gym-failure-kind"] == "data"
    assert it.requests == []


def test_request_that_cannot_be_converted_does_not_choose_the_api() -> None:
    with open_model_server(chat_only) as it:
        response = asyncio.run(it.post({"input": "x", "previous_response_id": "r"}))
        assert (response.status, kind_of(response)) == (404, "data")  # the other route was not called
        it.post_ok({"input": "x"})
        assert it.apis == ["responses", "responses", "chat"]


def test_response_that_cannot_be_converted_is_a_failure_of_the_endpoint() -> None:
    with open_model_server(
        lambda request: json_response({"choices": []}), upstream_api="chat_completions"
    ) as it:
        response = asyncio.run(it.post({"input": "x"}))
        assert "the endpoint's response cannot be read: choices" in asyncio.run(response.text())
    assert response.status == 502
    assert response.headers["x-nemo-gym-failure-kind"] == "infrastructure"


def test_extra_body_is_laid_under_the_converted_request() -> None:
    extra = {"max_completion_tokens": 9, "max_tokens": 9, "chat_template_kwargs": {"a": 1}}
    with open_model_server(chat_only, upstream_api="chat_completions", extra_body=extra) as it:
        it.post_ok({"input": "x", "max_output_tokens": 7})
        it.post_ok({"input": "x"})
    first, second = it.requests
    assert {name: value for name, value in first.items() if "max" in name} == {"max_completion_tokens": 7}
    assert first["chat_template_kwargs"] == {"a": 1}
    assert second.items() >= extra.items()


@pytest.mark.parametrize(("upstream", "has_seed"), [("chat_completions", True), ("responses", False)])
def test_openai_gets_a_seed_with_chat_completions_only(upstream: str, has_seed: bool) -> None:
    class OnLoopback(OpenAIModel):
        @cached_property
        def endpoint(self) -> NeMoGymAsyncOpenAI:
            return NeMoGymAsyncOpenAI(scripted.base_url, "k")

    url = "https://api.openai.com/v1"
    values = {**SETTINGS, "openai_base_url": url, "upstream_api": upstream}
    config = OpenAIModelConfig.model_validate(values)
    with ScriptedEndpoint(chat_only if has_seed else responses_only) as scripted:
        it = ModelServer(OnLoopback(config=config, server_client=ServerClient()), scripted)
        it.post_ok({"input": "x", "seed": 3})
        it.post_ok({**HI, "seed": 3}, CHAT)
    assert ["seed" in request for request in it.requests] == [has_seed] * 2


@pytest.mark.parametrize(("has_parser", "content"), [(True, "<think>hm</think>hi"), (False, "hi")])
def test_reasoning_in_the_text_is_found_if_the_endpoint_has_no_parser(has_parser: bool, content: str) -> None:
    def script(request: Json) -> web.Response:
        return json_response(completion("<think>hm</think>hi"))

    with open_model_server(script, upstream_api="chat_completions", uses_reasoning_parser=has_parser) as it:
        items = it.post_ok({"input": "x"})["output"]
    assert items[-1]["content"][0]["text"] == content
    assert len(items) == (1 if has_parser else 2)


def test_stream_is_requested_and_assembled() -> None:
    def script(request: Json) -> web.Response:
        assert request["stream"] is True
        if "messages" in request:
            assert request["stream_options"] == {"include_usage": True}
            delta = {"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
            events: list[Json] = [{"id": "c", "choices": [delta]}, {"choices": [], "usage": USAGE}]
        else:
            response = {"id": "r", "output": [message("hi")], "usage": {"input_tokens": 3}}
            events = [{"type": "response.completed", "response": response}]
        body = b"".join(b"data: %s\n\n" % orjson.dumps(event) for event in events)
        return web.Response(body=body, content_type="text/event-stream")

    with open_model_server(script, stream=True) as it:
        assert it.post_ok({"input": "x", "stream": False})["usage"]["input_tokens"] == 3
        chat = it.post_ok(HI, CHAT)
        assert (chat["choices"][0]["message"]["content"], chat["usage"]["total_tokens"]) == ("hi", 5)
    with open_model_server(script, stream=True, upstream_api="chat_completions") as it:
        assert it.post_ok({"input": "x"})["usage"]["total_tokens"] == 5


@pytest.mark.parametrize("usage", [{}, {"usage": None}, {"usage": {}}])
def test_usage_is_always_present_and_its_absence_is_logged_once(
    usage: Json, caplog: pytest.LogCaptureFixture
) -> None:
    def script(request: Json) -> web.Response:
        if "input" in request:
            return json_response({"output": [], **usage})
        whole = completion()
        del whole["usage"]
        return json_response({**whole, **usage})

    with open_model_server(script) as it:
        for _ in range(2):
            counts = it.post_ok({"input": "x"})["usage"]
            assert counts == NeMoGymResponseUsage().model_dump()
            chat = it.post_ok(HI, CHAT)["usage"]
            assert (chat["prompt_tokens"], chat["completion_tokens"], chat["total_tokens"]) == (0, 0, 0)
        it.model.routes["responses"].is_converting = True
        assert it.post_ok({"input": "x"})["usage"] == NeMoGymResponseUsage().model_dump()
    assert warnings_in(caplog) == ["policy_model: the endpoint reports no usage; counted as 0"]


@pytest.mark.parametrize(
    ("given", "generated", "total"), [(5, 2, None), (5, None, None), (5, 2, 9), (None, None, 4)]
)
@pytest.mark.parametrize("upstream", ["responses", "chat_completions"])
@pytest.mark.parametrize("with_nulls", [False, True])
def test_counts_that_the_endpoint_leaves_out_are_filled_in(
    upstream: str, with_nulls: bool, given: int | None, generated: int | None, total: int | None
) -> None:
    def usage(names: tuple[str, str]) -> Json:
        counts = dict(zip((*names, "total_tokens"), (given, generated, total), strict=True))
        return {name: count for name, count in counts.items() if with_nulls or count is not None}

    def script(request: Json) -> web.Response:
        if "input" in request:
            return json_response(
                {"output": [message("hi")], "usage": usage(("input_tokens", "output_tokens"))}
            )
        return json_response({**completion(), "usage": usage(("prompt_tokens", "completion_tokens"))})

    expected = (given or 0, generated or 0, total or (given or 0) + (generated or 0))
    with open_model_server(script, upstream_api=upstream) as it:
        counts = it.post_ok({"input": "x"})["usage"]
        assert (counts["input_tokens"], counts["output_tokens"], counts["total_tokens"]) == expected
        counts = it.post_ok(HI, CHAT)["usage"]
        assert (counts["prompt_tokens"], counts["completion_tokens"], counts["total_tokens"]) == expected


def test_converted_response_has_start_and_end_times_of_the_call() -> None:
    called_at: list[float] = []

    def script(request: Json) -> web.Response:
        called_at.append(time.time())
        return json_response(completion())

    with open_model_server(script, upstream_api="chat_completions") as it:
        before = time.time()
        response = it.post_ok({"input": "x"})
        after = time.time()
    assert before <= response["created_at"] <= called_at[0] <= response["completed_at"] <= after


def test_failed_response_without_usage_causes_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    failed = {"output": [], "status": "failed", "error": {"code": "server_error", "message": "m"}}
    with open_model_server(lambda request: json_response(failed)) as it:
        assert it.post_ok({"input": "x"})["usage"]["total_tokens"] == 0
    assert warnings_in(caplog) == []
