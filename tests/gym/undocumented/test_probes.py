"""Undocumented APIs: the probes pass with the pinned versions, and a failed probe selects the fallback."""

import asyncio
import logging
import socket
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path

import aiohttp
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.requests import Request

from nemo_gym.undocumented import probe as probe_module
from nemo_gym.undocumented import starlette_internals, uvicorn_internals
from nemo_gym.undocumented.probe import Probe

FENCES = sorted(file.stem for file in Path(probe_module.__file__).parent.glob("*_internals.py"))


@pytest.mark.fast_path
@pytest.mark.parametrize("module", FENCES)
def test_probe_passes_with_the_pinned_version(module: str) -> None:
    fence = import_module(f"nemo_gym.undocumented.{module}")
    assert fence.probe.library == module.removesuffix("_internals")
    assert fence.probe.passed


@pytest.mark.fast_path
def test_unexpected_result_selects_the_documented_api_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changed = Probe("fastapi", lambda: False)
    with caplog.at_level(logging.WARNING):
        assert not changed.passed
        assert not changed.passed
    assert len(caplog.messages) == 1
    assert "fastapi" in caplog.messages[0]


@pytest.mark.fast_path
def test_exception_in_a_check_selects_the_documented_api(caplog: pytest.LogCaptureFixture) -> None:
    def check() -> bool:
        raise AttributeError("gone")

    assert not Probe("no-such-distribution", check).passed
    assert "AttributeError('gone')" in caplog.text


def test_lifespan_messages_have_the_same_effect_as_the_lifespan_context() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def life(app: FastAPI):  # type: ignore[no-untyped-def]  # FastAPI reads no annotation here
        log.append("start-up")
        yield {"answer": 42}
        log.append("shutdown")

    async def run() -> None:
        async with starlette_internals._lifespan_by_messages(FastAPI(lifespan=life)) as state:
            assert (dict(state), log) == ({"answer": 42}, ["start-up"])

    asyncio.run(run())
    assert log == ["start-up", "shutdown"]


def test_start_up_error_is_raised_by_lifespan_messages() -> None:
    @asynccontextmanager
    async def life(app: FastAPI):  # type: ignore[no-untyped-def]  # FastAPI reads no annotation here
        raise LookupError("no database")
        yield

    async def run() -> None:
        async with starlette_internals._lifespan_by_messages(FastAPI(lifespan=life)):
            raise AssertionError("not reached")

    with pytest.raises(LookupError, match="no database"):
        asyncio.run(run())


def test_server_in_a_thread_responds_until_the_context_ends() -> None:
    app = FastAPI()

    @app.get("/")
    async def root(request: Request) -> str:
        return "here"

    async def run() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        config = uvicorn.Config(app, log_level="warning")
        async with aiohttp.ClientSession() as client:
            async with (
                uvicorn_internals._serving_in_thread(config, listener),
                client.get(url) as response,
            ):
                assert await response.json() == "here"
            with pytest.raises(aiohttp.ClientConnectionError):
                await client.get(url)

    asyncio.run(run())
