import asyncio
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.local_engine import EngineError, EngineSettings, LocalEngine, find_weights, generate
from nemo_gym.local_engine.prompt_ids import Conversation
from tests.support.commands import is_running, wait_until
from tests.support.engines import engines_below, wait_until_slots_are_busy

LONG = {"n_predict": 40, "temperature": 0, "ignore_eos": True}
SHORT = LONG | {"n_predict": 24}


def settings(**changes: Any) -> EngineSettings:
    return EngineSettings(find_weights(), **{"slots": 2, "context": 256, **changes})


def has_ended(pid: int) -> bool:
    return not is_running(pid)


async def hi(engine: LocalEngine) -> list[int]:
    return await Conversation([{"role": "user", "content": "Say hi"}], [], {}).prompt(engine, 2)


def test_engine_that_dies_is_restarted_and_the_request_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def killed() -> int:
        engine = LocalEngine(settings())
        await engine.start()
        try:
            prompt = await hi(engine)
            generating = asyncio.create_task(generate(engine, prompt, LONG))
            await wait_until_slots_are_busy(engine)
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            assert len((await generating).token_ids) == 40
            return engine.deaths
        finally:
            await engine.stop(1.0)

    assert asyncio.run(killed()) == 1
    assert "the engine died (exit code -9)" in caplog.text
    assert "has been started again" in caplog.text


def test_death_of_the_engine_loses_none_of_its_requests() -> None:
    async def killed() -> tuple[list[int], int]:
        engine = LocalEngine(settings(slots=4))
        await engine.start()
        try:
            prompt = await hi(engine)
            lengths: list[int] = []
            for _ in range(2):
                generating = [asyncio.create_task(generate(engine, prompt, SHORT)) for _ in range(4)]
                await wait_until_slots_are_busy(engine, 4)
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
                assert not any(task.done() for task in generating)
                lengths += [len(generation.token_ids) for generation in await asyncio.gather(*generating)]
            return lengths, engine.deaths
        finally:
            await engine.stop(1.0)

    assert asyncio.run(killed()) == ([24] * 8, 2)


def test_requests_fail_if_the_engine_is_stopped_during_a_restart() -> None:
    async def stopped() -> None:
        engine = LocalEngine(settings())
        await engine.start()
        prompt, pid = await hi(engine), engine.pid
        assert pid is not None
        others = set(engines_below(os.getpid()))
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.to_thread(wait_until, partial(has_ended, pid))
        generating = asyncio.create_task(generate(engine, prompt, LONG))
        assert await asyncio.to_thread(wait_until, lambda: not others.issuperset(engines_below(os.getpid())))
        await engine.stop(0.0)
        async with asyncio.timeout(60):
            with pytest.raises(EngineError, match="being stopped"):
                await generating

    asyncio.run(stopped())


def test_requests_fail_with_the_reason_if_the_weights_are_missing_at_a_restart(tmp_path: Path) -> None:
    weights = tmp_path / "weights.gguf"
    weights.symlink_to(find_weights())

    async def killed() -> None:
        engine = LocalEngine(EngineSettings(weights, slots=1, context=256))
        await engine.start()
        try:
            await hi(engine)
            weights.unlink()
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            async with asyncio.timeout(60):
                with pytest.raises(EngineError, match=r"cannot be started again.*weights\.gguf"):
                    await hi(engine)
        finally:
            await engine.stop(1.0)

    asyncio.run(killed())


def test_engine_is_not_started_again_after_max_restarts() -> None:
    async def killed() -> None:
        engine = LocalEngine(settings(max_restarts=1))
        await engine.start()
        try:
            for _ in range(2):
                await hi(engine)
                pid = engine.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                assert await asyncio.to_thread(wait_until, partial(has_ended, pid))
            with pytest.raises(EngineError, match=r"died too often.*max_restarts"):
                await hi(engine)
        finally:
            await engine.stop(1.0)

    asyncio.run(killed())


def test_stopping_waits_for_generations_and_leaves_no_process() -> None:
    async def stopped() -> tuple[int, int]:
        engine = LocalEngine(settings())
        await engine.start()
        generating = asyncio.create_task(generate(engine, await hi(engine), LONG))
        await wait_until_slots_are_busy(engine)
        assert engine.pid is not None
        await engine.stop(120.0)
        return engine.pid, len((await generating).token_ids)

    pid, generated = asyncio.run(stopped())
    assert generated == 40
    assert not is_running(pid)


def test_stopping_waits_no_longer_than_its_limit() -> None:
    async def stopped() -> int:
        engine = LocalEngine(settings(context=2048))
        await engine.start()
        generating = asyncio.create_task(generate(engine, await hi(engine), LONG | {"n_predict": 2000}))
        await wait_until_slots_are_busy(engine)
        assert engine.pid is not None
        async with asyncio.timeout(60):
            await engine.stop(0.2)
        with pytest.raises(EngineError):
            await generating
        return engine.pid

    assert not is_running(asyncio.run(stopped()))


def test_engine_ends_with_the_process_that_owns_it() -> None:
    owner = """
import asyncio
from nemo_gym.local_engine import EngineSettings, LocalEngine, find_weights
async def main():
    engine = LocalEngine(EngineSettings(find_weights(), slots=1, context=128))
    await engine.start()
    print(engine.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    assert wait_until(lambda: not is_running(pid))


def test_file_without_weights_is_an_error_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "not.gguf"
    file.write_text("no weights")

    async def start() -> None:
        await LocalEngine(EngineSettings(file)).start()

    with pytest.raises(ConfigError, match=r"cannot run .*not\.gguf.*invalid magic"):
        asyncio.run(start())


def test_invalid_chat_template_fails_the_start() -> None:
    async def start() -> None:
        await LocalEngine(settings(chat_template="{% if %}")).start()

    with pytest.raises(ConfigError, match="the engine cannot run"):
        asyncio.run(start())
