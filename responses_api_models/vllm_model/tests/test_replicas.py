import asyncio
import logging
from typing import Any

import aiohttp
import pytest

from nemo_gym.http import RetryPolicy, ServerUnreachableError
from nemo_gym.openai_utils import NeMoGymAsyncOpenAI
from responses_api_models.vllm_model.replicas import DOWN_S, Replicas
from responses_api_models.vllm_model.tests.asking import Gym
from tests.support.vllm_stand_in import VLLMStandIn

AT_ONCE = RetryPolicy(attempts=1)


def replicas_at(*names: str, clock: Any = lambda: 0.0) -> Replicas:
    endpoints = [NeMoGymAsyncOpenAI(f"http://{name}", "k", retry=AT_ONCE) for name in names]
    return Replicas("policy_model", endpoints, clock=clock)


def name_of(endpoint: NeMoGymAsyncOpenAI) -> str:
    return endpoint.base_url.removeprefix("http://")


async def asked(endpoint: NeMoGymAsyncOpenAI) -> str:
    return name_of(endpoint)


def without(*dead: str) -> Any:
    """Asks an endpoint; the named ones give no answer."""

    async def ask(endpoint: NeMoGymAsyncOpenAI) -> str:
        if name_of(endpoint) in dead:
            raise ServerUnreachableError("", f"no answer from {name_of(endpoint)}")
        return name_of(endpoint)

    return ask


def test_session_stays_with_the_replica_of_its_first_call() -> None:
    async def run() -> None:
        replicas = replicas_at("a", "b", "c")
        sessions: list[dict[str, Any]] = [{} for _ in range(6)]
        first = [await replicas.call(session, asked) for session in sessions]
        assert first == ["a", "b", "c", "a", "b", "c"]
        assert [await replicas.call(session, asked) for session in reversed(sessions)] == first[::-1]

    asyncio.run(run())


def test_new_session_goes_where_the_fewest_calls_are_in_flight() -> None:
    async def run() -> None:
        replicas = replicas_at("a", "b")
        release = asyncio.Event()

        async def hold(endpoint: NeMoGymAsyncOpenAI) -> str:
            await release.wait()
            return name_of(endpoint)

        session: dict[str, Any] = {}
        held = [asyncio.create_task(replicas.call(session, hold)) for _ in range(3)]
        await asyncio.sleep(0)
        assert [await replicas.call({}, asked) for _ in range(3)] == ["b", "b", "b"]
        release.set()
        assert await asyncio.gather(*held) == ["a", "a", "a"]
        assert sorted([await replicas.call({}, asked) for _ in range(2)]) == ["a", "b"]

    asyncio.run(run())


def test_call_that_is_given_up_is_in_flight_no_more() -> None:
    async def run() -> None:
        replicas = replicas_at("a", "b")

        async def hang(endpoint: NeMoGymAsyncOpenAI) -> str:
            await asyncio.Event().wait()
            return ""

        call = asyncio.create_task(replicas.call({}, hang))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert [await replicas.call({}, asked) for _ in range(4)] == ["b", "a", "b", "a"]

    asyncio.run(run())


def test_session_of_a_dead_replica_moves_and_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        replicas = replicas_at("a", "b", "c")
        sessions: list[dict[str, Any]] = [{} for _ in range(3)]
        for session in sessions:
            await replicas.call(session, asked)
        moved = await replicas.call(sessions[0], without("a"))
        assert moved in ("b", "c")
        assert await replicas.call(sessions[0], asked) == moved

    asyncio.run(run())
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "policy_model: a replica is down: no answer from a; its sessions move" in record.getMessage()


def test_dead_replica_is_passed_over_for_a_while_and_then_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        now = 0.0
        replicas = replicas_at("a", "b", clock=lambda: now)
        tried: list[str] = []

        async def ask(endpoint: NeMoGymAsyncOpenAI) -> str:
            tried.append(name_of(endpoint))
            return await without("a")(endpoint)

        for _ in range(4):
            assert await replicas.call({}, ask) == "b"
        assert tried == ["a", "b", "b", "b", "b"]
        now = DOWN_S
        assert "a" in [await replicas.call({}, asked) for _ in range(2)]

    asyncio.run(run())
    assert len(caplog.records) == 1


def test_replica_that_was_down_is_asked_where_all_others_fail() -> None:
    async def run() -> None:
        replicas = replicas_at("a", "b")
        session: dict[str, Any] = {}
        assert await replicas.call(session, without("a")) == "b"
        assert await replicas.call(session, without("b")) == "a"

    asyncio.run(run())


def test_where_all_replicas_are_dead_the_error_goes_up() -> None:
    async def run() -> None:
        replicas = replicas_at("a", "b")
        for _ in range(2):
            with pytest.raises(aiohttp.ClientConnectionError, match="no answer from"):
                await replicas.call({}, without("a", "b"))

    asyncio.run(run())


def test_error_that_a_replica_answers_moves_nobody() -> None:
    async def run() -> None:
        replicas = replicas_at("a", "b")
        session: dict[str, Any] = {}

        async def refuse(endpoint: NeMoGymAsyncOpenAI) -> str:
            raise ValueError(name_of(endpoint))

        for _ in range(2):
            with pytest.raises(ValueError, match="a"):
                await replicas.call(session, refuse)

    asyncio.run(run())


def test_session_of_a_single_replica_stays_empty() -> None:
    session: dict[str, Any] = {}
    assert asyncio.run(replicas_at("a").call(session, asked)) == "a"
    assert session == {}


def test_rollouts_go_on_when_a_server_goes_down(caplog: pytest.LogCaptureFixture) -> None:
    with VLLMStandIn() as one, VLLMStandIn() as two:
        gym = Gym(one, two)
        one.go_down()
        for _ in range(3):
            assert gym.post({"input": "x"}).ok
    assert len(two.bodies()) == 3
    (record,) = caplog.records
    assert one.base_url in record.getMessage()


def test_where_no_server_answers_it_is_a_failure_of_infrastructure() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm)
        vllm.go_down()
        answer = gym.post({"input": "x"})
    assert answer.headers["x-nemo-gym-failure-kind"] == "infrastructure"
    assert answer.headers["x-nemo-gym-failure-status"] == "503"
