"""How much goes to the endpoint at once, how often, and for how long."""

import asyncio

import pytest
from aiohttp import web

from responses_api_models.openai_model.tests.asking import Json, asking, chat_only
from responses_api_models.openai_model.tests.test_app import most_at_once


def test_no_pool_holds_requests_back() -> None:
    assert asyncio.run(most_at_once(None, calls=300, expected=300)) == 300


def test_limit_holds_among_many() -> None:
    assert asyncio.run(most_at_once(40, calls=300, expected=40)) == 40


@pytest.mark.parametrize("setting", [{"max_tries": 0}, {"request_timeout_s": 0}, {"upstream_api": "grpc"}])
def test_settings_that_make_no_sense_are_refused(setting: Json) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))), asking(chat_only, **setting):
        pass


def test_tries_and_time_are_as_configured() -> None:
    with asking(lambda request: web.Response(status=500), max_tries=1) as it:
        assert asyncio.run(it.post({"input": "x"})).status == 500
        assert len(it.requests) == 1

    async def hang(request: Json) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with asking(hang, request_timeout_s=0.1) as it:
        response = asyncio.run(it.post({"input": "x"}))
        assert response.headers["x-nemo-gym-failure-kind"] == "infrastructure"
        assert "no answer in 0.1 s" in asyncio.run(response.text())
