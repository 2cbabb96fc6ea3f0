import asyncio
import logging
from typing import Any

import aiohttp
import pytest

from nemo_gym.http import RetryPolicy, ServerUnreachableError
from nemo_gym.openai_utils import NeMoGymAsyncOpenAI
from responses_api_models.vllm_model.replicas import DOWN_S, Replicas
from responses_api_models.vllm_model.tests.model_under_test import Gym
from tests.support.vllm_stand_in import VLLMStandIn

AT_ONCE = RetryPolicy(max_tries=1)


def replicas_at(*names: str, clock: Any = lambda: 0.0) -> Replicas:
    endpoints = [NeMoGymAsyncOpenAI(f"http://{name}", "k", retry=AT_ONCE) for name in names]
    return Replicas("policy_model", endpoints, clock=clock)


def name_of(endpoint: NeMoGymAsyncOpenAI) -> str:
    return endpoint.base_url.removeprefix("http://")


async def name_after_call(endpoint: NeMoGymAsyncOpenAI) -> str:
    return name_of(endpoint)


def without(*dead: str) -> Any:
    """Calls an endpoint; the named ones do not respond."""

    async def call_endpoint(endpoint: NeMoGymAsyncOpenAI) -> str:
        if name_of(endpoint) in dead:
            raise ServerUnreachableError("", f"no response from {name_of(endpoint)}")
        return name_of(endpoint)

    return call_endpoint


def test_session_stays_with_the_replica_of_its_first_call() -> None:
    async def run() -> None:
        replicas = replicas_at("a", "b", "c")
        sessions: list[dict[str, Any]] = [{} for _ in range(6)]
        first = [await replicas.call(session, name_after_call) for session in sessions]
        assert first == ["a", "b", "c", "a", "b", "c"]
        assert [await replicas.call(session, name_after_call) for session in reversed(sessions)] == first[
            ::-1
        ]

    asyncio.run(run())


def test_new_session_uses_the_replica_with_the_fewest_calls_in_flight() -> None:
    async def run() -> None:
        replicas = replicas_at("a", "b")
        release = asyncio.Event()

        async def hold(endpoint: NeMoGymAsyncOpenAI) -> str:
            await release.wait()
            return name_of(endpoint)

        session: dict[str, Any] = {}
        held = [asyncio.create_task(replicas.call(session, hold)) for _ in range(3)]
        await asyncio.sleep(0)
        assert [await replicas.call({}, name_after_call) for _ in range(3)] == ["b", "b", "b"]
        release.set()
        assert await asyncio.gather(*held) == ["a", "a", "a"]
        assert sorted([await replicas.call({}, name_after_call) for _ in range(2)]) == ["a", "b"]

    asyncio.run(run())


def test_cancelled_call_is_not_in_flight_any_more() -> None:
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
        assert [await replicas.call({}, name_after_call) for _ in range(4)] == ["b", "a", "b", "a"]

    asyncio.run(run())


def test_session_of_a_dead_replica_moves_and_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        replicas = replicas_at("a", "b", "c")
        sessions: list[dict[str, Any]] = [{} for _ in range(3)]
        for session in sessions:
            await replicas.call(session, name_after_call)
        moved = await replicas.call(sessions[0], without("a"))
        assert moved in ("b", "c")
        assert await replicas.call(sessions[0], name_after_call) == moved

    asyncio.run(run())
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "policy_model: a replica is down: no response from a; its sessions move" in record.getMessage()


def test_dead_replica_is_skipped_for_a_while_and_then_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        now = 0.0
        replicas = replicas_at("a", "b", clock=lambda: now)
        tried: list[str] = []

        async def call_endpoint(endpoint: NeMoGymAsyncOpenAI) -> str:
            tried.append(name_of(endpoint))
            return await without("a")(endpoint)

        for _ in range(4):
            assert await replicas.call({}, call_endpoint) == "b"
        assert tried == ["a", "b", "b", "b", "b"]
        now = DOWN_S
        assert "a" in [await replicas.call({}, name_after_call) for _ in range(2)]

    asyncio.run(run())
    assert len(caplog.records) == 1


def test_replica_that_was_down_is_called_if_all_others_fail() -> None:
    async def run() -> None:
        replicas = replicas_at("a", "b")
        session: dict[str, Any] = {}
        assert await replicas.call(session, without("a")) == "b"
        assert await replicas.call(session, without("b")) == "a"

    asyncio.run(run())


def test_error_is_raised_if_all_replicas_are_dead() -> None:
    async def run() -> None:
        replicas = replicas_at("a", "b")
        for _ in range(2):
            with pytest.raises(aiohttp.ClientConnectionError, match="no response from"):
                await replicas.call({}, without("a", "b"))

    asyncio.run(run())


def test_error_response_of_a_replica_does_not_move_its_session() -> None:
    async def run() -> None:
        replicas = replicas_at("a", "b")
        session: dict[str, Any] = {}

        async def respond_with_error(endpoint: NeMoGymAsyncOpenAI) -> str:
            raise ValueError(name_of(endpoint))

        for _ in range(2):
            with pytest.raises(ValueError, match="a"):
                await replicas.call(session, respond_with_error)

    asyncio.run(run())


def test_session_of_a_single_replica_stays_empty() -> None:
    session: dict[str, Any] = {}
    assert asyncio.run(replicas_at("a").call(session, name_after_call)) == "a"
    assert session == {}


def test_rollouts_continue_when_a_server_goes_down(caplog: pytest.LogCaptureFixture) -> None:
    with VLLMStandIn() as one, VLLMStandIn() as two:
        gym = Gym(one, two)
        one.go_down()
        for _ in range(3):
            assert gym.post({"input": "x"}).ok
    assert len(two.bodies()) == 3
    (record,) = caplog.records
    assert one.base_url in record.getMessage()


def test_unreachable_servers_are_an_infrastructure_failure() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm)
        vllm.go_down()
        response = gym.post({"input": "x"})
    assert response.headers["x-nemo-gym-failure-kind"] == "infrastructure"
    assert response.headers["x-nemo-gym-failure-status"] == "503"
