import asyncio
import json
import logging
import pickle
from http.cookies import Morsel, SimpleCookie
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import cookie_parser
from starlette.responses import Response

from nemo_gym.errors import NeMoGymError
from nemo_gym.http import (
    FAILURE_KIND_HEADER,
    FAILURE_SERVER_HEADER,
    FAILURE_STATUS_HEADER,
    ClientResponse,
    EndpointError,
    ServerCallError,
    ServerUnreachableError,
    cookie_header,
    get_global_aiohttp_client,
    get_response_json,
    raise_for_status,
)
from nemo_gym.http.client_response import parse_cookies
from tests.gym.http.raw_server import raw_response, serving


def make_response(status: int = 200, body: bytes = b"{}", *headers: tuple[str, str]) -> ClientResponse:
    return ClientResponse(status, headers, body, method="POST", url="http://127.0.0.1:1/x")


def error_of(response: ClientResponse) -> ServerCallError:
    with pytest.raises(ServerCallError) as caught:
        asyncio.run(raise_for_status(response))
    return caught.value


def test_body_is_read_as_often_as_one_likes() -> None:
    async def run() -> None:
        response = make_response(200, '{"a": "é"}'.encode())
        for _ in range(2):
            assert await response.read() == '{"a": "é"}'.encode()
            assert await response.text() == '{"a": "é"}'
            assert await response.json() == await get_response_json(response) == {"a": "é"}
        assert await response.content.read() == '{"a": "é"}'.encode()

    asyncio.run(run())


def test_content_can_be_read_in_pieces_to_its_end() -> None:
    async def run() -> list[bytes]:
        content = make_response(200, b"0123456789").content
        return [await content.read(n) for n in (3, 0, 4, -1, -1, 5)]

    assert asyncio.run(run()) == [b"012", b"", b"3456", b"789", b"", b""]


def test_content_is_always_the_same_stream() -> None:
    async def run() -> bytes:
        response = make_response(200, b"0123")
        return await response.content.read(2) + await response.content.read()

    assert asyncio.run(run()) == b"0123"


def test_text_that_is_not_utf8_can_be_read_all_the_same() -> None:
    assert asyncio.run(make_response(200, b"caf\xe9").text()) == "caf\ufffd"
    assert asyncio.run(make_response(200, b"caf\xe9").text("latin-1")) == "café"


@pytest.mark.parametrize(
    ("status", "ok"), [(200, True), (204, True), (302, True), (399, True), (400, False), (500, False)]
)
def test_ok_is_every_status_below_400(status: int, ok: bool) -> None:
    assert make_response(status).ok is ok


def test_header_names_are_case_insensitive() -> None:
    response = make_response(200, b"", ("x-one", "1"), ("X-Two", "2"))
    assert (response.headers["X-One"], response.headers.get("x-two")) == ("1", "2")


def test_response_works_in_code_written_for_aiohttp() -> None:
    async def run() -> bytes:
        async with make_response(200, b"x") as response:
            response.raise_for_status()
            response.release()
            response.close()
            return await response.read()

    assert asyncio.run(run()) == b"x"


def test_error_carries_status_and_content() -> None:
    error = error_of(make_response(422, b'{"detail":"no"}'))
    assert (error.status, error.response_content) == (422, b'{"detail":"no"}')
    assert isinstance(error, aiohttp.ClientResponseError) and isinstance(error, NeMoGymError)
    assert str(error) == 'POST http://127.0.0.1:1/x: 422: {"detail":"no"}'


def test_error_names_the_server_that_failed_first() -> None:
    error = error_of(
        make_response(
            500,
            b"",
            (FAILURE_SERVER_HEADER, "policy_model"),
            (FAILURE_STATUS_HEADER, "400"),
            (FAILURE_KIND_HEADER, "data"),
        )
    )
    assert (error.server, error.origin_status, error.kind, error.status) == (
        "policy_model",
        400,
        "data",
        500,
    )
    assert "policy_model responded with 400" in str(error)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "data"), (401, "data"), (404, "data"), (422, "data")]
    + [(code, "infrastructure") for code in (408, 425, 429, 500, 502, 503, 504, 520, 529)],
)
def test_kind_of_a_response_without_the_header_follows_from_its_status(status: int, kind: str) -> None:
    assert error_of(make_response(status)).kind == kind


def test_error_shows_only_the_beginning_of_a_long_body() -> None:
    error = error_of(make_response(500, b"x" * 1_000_000))
    assert len(str(error)) < 3000
    assert len(error.response_content) == 1_000_000


def test_ok_response_does_not_raise() -> None:
    asyncio.run(raise_for_status(make_response(204, b"")))


def test_response_of_the_shared_client_raises_the_same_error() -> None:
    async def run() -> ServerCallError:
        async with serving(raw_response(418, b"teapot")) as server:
            raw = await get_global_aiohttp_client().post(server.url)
            with pytest.raises(ServerCallError) as caught:
                await raise_for_status(raw)
        return caught.value

    error = asyncio.run(run())
    assert (error.status, error.response_content) == (418, b"teapot")


@pytest.mark.parametrize(
    "url", ["http://ann:hush-hush@127.0.0.1:1/v1/responses", "http://127.0.0.1:1/v1?api_key=hush-hush"]
)
def test_credentials_in_a_url_are_shown_nowhere(url: str, caplog: pytest.LogCaptureFixture) -> None:
    response = ClientResponse(500, (), b"broken", url=url)
    error = EndpointError(response)
    try:
        raise error
    except EndpointError:
        logging.getLogger("test").exception("failed: %s", error)
    for text in (str(error), repr(error), repr(response), caplog.text):
        assert "hush-hush" not in text
        assert "127.0.0.1:1" in text or text == caplog.text


def test_unreachable_server_is_named() -> None:
    error = ServerUnreachableError("policy_model", "no response")
    assert str(error) == "policy_model: no response"
    assert isinstance(error, aiohttp.ClientConnectionError) and isinstance(error, NeMoGymError)


def set_by_server(**cookies: str) -> ClientResponse:
    """A response that sets cookies as our applications do."""
    carrier = Response()
    for name, value in cookies.items():
        carrier.set_cookie(name, value, httponly=True, max_age=60)
    headers = [(name.decode(), value.decode("latin-1")) for name, value in carrier.raw_headers]
    return ClientResponse(200, headers, b"")


def received_by_server(cookies: Any) -> dict[str, str]:
    header = cookie_header(cookies)
    assert header.isascii()  # the transports encode other characters differently
    return cookie_parser(header)


def test_cookies_are_morsels_by_name_as_in_aiohttp() -> None:
    cookies = set_by_server(a="1", b="two words").cookies
    assert isinstance(cookies, SimpleCookie)
    assert {name: morsel.value for name, morsel in cookies.items()} == {"a": "1", "b": "two words"}


@given(st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20))
def test_any_cookie_of_a_server_is_sent_back_unchanged(value: str) -> None:
    cookies = set_by_server(first="1", it=value).cookies
    assert received_by_server(cookies) == {"first": "1", "it": value}
    assert received_by_server(dict(cookies)) == {"first": "1", "it": value}
    assert received_by_server({"first": "1", "it": cookies["it"].value}) == {"first": "1", "it": value}


def test_cookie_with_unusual_characters_is_sent_back_unchanged() -> None:
    header = ("Set-Cookie", "route=a/b=c+d==@1; Path=/; Secure")
    cookies = ClientResponse(200, [header], b"").cookies
    assert cookie_header(cookies) == "route=a/b=c+d==@1"


@pytest.mark.parametrize(
    "header", ["", "=x", "novalue", 'broken="unterminated', "sp ace=1", "a[b]=1", "path=1"]
)
def test_unreadable_cookie_does_not_hide_others(header: str) -> None:
    response = ClientResponse(200, [("Set-Cookie", header), ("Set-Cookie", "good=1")], b"")
    assert response.cookies["good"].value == "1"


def test_the_last_of_two_cookies_with_one_name_counts() -> None:
    response = ClientResponse(200, [("Set-Cookie", "a=1"), ("set-cookie", "a=2; Path=/")], b"")
    assert response.cookies["a"].value == "2"


def test_plain_texts_and_morsels_can_be_mixed() -> None:
    morsel: Morsel[str] = Morsel()
    morsel.set("b", "two words", '"two words"')
    assert received_by_server({"a": "x;y", "b": morsel}) == {"a": "x;y", "b": "two words"}


def test_errors_are_unchanged_in_another_process() -> None:
    headers = [("x-nemo-gym-failure-server", "policy_model"), ("x-nemo-gym-failure-status", "400")]
    error = EndpointError(ClientResponse(500, headers, b"because", method="POST", url="agent/run"))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.server, again.kind) == (str(error), "policy_model", error.kind)
    assert again.response_content == b"because"
    unreachable = pickle.loads(pickle.dumps(ServerUnreachableError("it", "refused")))
    assert (str(unreachable), unreachable.server) == ("it: refused", "it")


@pytest.mark.parametrize("body", [b'{"output": [{"text": "cut o', b"<html>gateway</html>", b"", b"[" * 10**5])
def test_error_for_a_body_that_is_not_json_names_the_server(body: bytes) -> None:
    response = ClientResponse(200, (), body, method="POST", url="policy_model/v1/responses")
    with pytest.raises(json.JSONDecodeError) as raised:  # environments catch this class
        asyncio.run(response.json())
    for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):
        assert isinstance(error, ServerUnreachableError)
        assert "POST policy_model/v1/responses responded with 200 and a body that is not JSON" in str(error)
    assert raised.value.doc == body.decode()


def test_cookies_of_two_responses_are_different_objects() -> None:
    responses = [ClientResponse(200, [("set-cookie", "a=1; Path=/")], b"") for _ in range(2)]
    responses[0].cookies["a"]["path"] = "/changed"
    assert responses[1].cookies["a"]["path"] == ""


@pytest.mark.parametrize("sent", ["a=1", "a=2", 'a="1"', "b=1", ""])
def test_cookies_are_those_of_the_response_whatever_the_request_sent(sent: str) -> None:
    response = ClientResponse(200, [("set-cookie", "a=1; Path=/")], b"")
    response.sent_cookies = parse_cookies(sent)
    assert cookie_header(response.cookies) == "a=1"
    assert (response.cookies["a"].key, response.cookies["a"].value) == ("a", "1")


def test_morsel_under_another_name_does_not_come_back() -> None:
    response = ClientResponse(200, [("set-cookie", "a=1; Path=/")], b"")
    response.sent_cookies = {"a": parse_cookies("b=1")["b"]}
    assert response.cookies["a"].key == "a"
