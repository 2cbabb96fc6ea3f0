"""The keyword arguments of a call, parsed once."""

from io import BytesIO
from typing import Any

import aiohttp
import pytest

from nemo_gym.http import Call, parse_call
from nemo_gym.http.call import address_of


@pytest.mark.parametrize(
    ("url", "origin", "path", "query"),
    [
        ("/verify", "", "/verify", ""),
        ("/a/./b/../c", "", "/a/c", ""),
        ("/größe x", "", "/gr%C3%B6%C3%9Fe%20x", ""),
        ("/x%2Fy?a=1&b=x%20y", "", "/x%2Fy", "a=1&b=x%20y"),
        ("http://127.0.0.1:8000/v1/responses", "http://127.0.0.1:8000", "/v1/responses", ""),
        ("http://node-7.cluster", "http://node-7.cluster", "/", ""),
        ("http://[::1]:81/x", "http://[::1]:81", "/x", ""),
        ("https://api.example/v1?version=3#top", "https://api.example", "/v1", "version=3"),
        ("http://user:pass%20word@host:9/x", "http://user:pass%20word@host:9", "/x", ""),
    ],
)
def test_a_url_is_split_into_the_parts_that_are_sent(url: str, origin: str, path: str, query: str) -> None:
    assert address_of(url) == (origin, path, query)


def test_parameters_are_added_to_the_query() -> None:
    call = parse_call("GET", "/x?a=1", params={"b": "x y", "c": ["2", "3"]})
    assert (call.path, call.query, call.target) == ("/x", "a=1&b=x+y&c=2&c=3", "/x?a=1&b=x+y&c=2&c=3")


BODIES: list[tuple[dict[str, Any], bytes, str | None]] = [
    ({"json": {"a": 1}}, b'{"a":1}', "application/json"),
    ({"json": {"a": 1}, "headers": {"X-Mine": "1"}}, b'{"a":1}', "application/json"),
    ({"json": 7, "headers": {"content-type": "application/x+json"}}, b"7", "application/x+json"),
    ({"data": b"raw"}, b"raw", None),
    ({"data": b"raw", "headers": {"Content-Type": "text/x"}}, b"raw", "text/x"),
    ({"data": "größe"}, "größe".encode(), "text/plain; charset=utf-8"),
    ({"data": {"a": "1", "b": "x y"}}, b"a=1&b=x+y", "application/x-www-form-urlencoded"),
    ({}, b"", None),
]


@pytest.mark.parametrize(("options", "body", "content_type"), BODIES)
def test_a_body_has_its_content_type_once(
    options: dict[str, Any], body: bytes, content_type: str | None
) -> None:
    call = parse_call("POST", "/x", **options)
    found = [value for name, value in call.wire_headers() if name.lower() == "content-type"]
    assert (call.body, found) == (body, [content_type] if content_type else [])
    assert call.is_json == (content_type == "application/json")


def test_other_kinds_of_data_are_sent_by_aiohttp() -> None:
    file = BytesIO(b"x")
    call = parse_call("POST", "/x", data={"file": file})
    assert (call.body, call.aiohttp_options) == (b"", {"data": {"file": file}})


@pytest.mark.parametrize("name", ["Cookie", "cookie"])
def test_cookie_header_is_parsed_and_sent_unchanged(name: str) -> None:
    header = 'a=1; b="two words"; c=x/y'
    call = parse_call("POST", "/x", headers={name: header})
    assert call.headers == ()
    assert call.wire_headers() == (("Cookie", header),)


def test_cookies_replace_a_cookie_header() -> None:
    call = parse_call("POST", "/x", cookies={"a": "1"}, headers={"Cookie": "b=2"})
    assert call.wire_headers() == (("Cookie", "a=1"),)


@pytest.mark.parametrize("timeout", [3.0, aiohttp.ClientTimeout(total=3.0)])
def test_a_timeout_is_a_number_or_that_of_aiohttp(timeout: Any) -> None:
    assert parse_call("GET", "/x", timeout=timeout).timeout_s == 3.0


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="proxy"):
        parse_call("GET", "/x", proxy="http://127.0.0.1")  # type: ignore[call-arg]  # the argument under test


def test_a_call_without_options_is_empty() -> None:
    assert parse_call("GET", "/x") == Call("GET", "/x")


def test_method_is_sent_in_capitals() -> None:
    assert parse_call("post", "/x").method == parse_call("post", "/x", json={}).method == "POST"
