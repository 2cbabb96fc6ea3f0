"""Loading other weights. Tests that leave the engine running share one; each loads the weights it needs."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.local_engine import EngineError, EngineSettings, Generation, LocalEngine, find_weights, generate
from nemo_gym.local_engine.prompt_ids import Conversation
from tests.support.changed_weights import write_changed_weights
from tests.support.commands import is_running
from tests.support.engines import engines_below
from tests.support.waiting import until

from .conftest import Running

GREEDY = {"temperature": 0, "ignore_eos": True, "n_predict": 12}
OLD, NEW = 3, 4


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_changed_weights(tmp_path_factory.mktemp("weights") / "changed.gguf")


@pytest.fixture(scope="module")
def reloaded() -> Iterator[Running]:
    started = Running(EngineSettings(find_weights(), slots=2, context=256))
    yield started
    started.close()


async def generate_text(engine: LocalEngine, n_predict: int = 12) -> Generation:
    prompt = await Conversation([{"role": "user", "content": "Say hi"}], [], {}).prompt(engine, 2)
    return await generate(engine, prompt, GREEDY | {"n_predict": n_predict}, top_log_probs=0)


def engines() -> set[int]:
    return set(engines_below(os.getpid()))


def has_mapped(pid: int, weights: Path) -> bool:
    with suppress(OSError):  # the process has ended
        return str(weights) in Path(f"/proc/{pid}/maps").read_text()
    return False


async def wait_until_loading(weights: Path, others: set[int]) -> None:
    """Wait until an engine that is not among the `others` loads the weights.

    The check runs in every iteration of the event loop. A reload needs several iterations after the engine
    has loaded the weights, so it is not complete when this returns.
    """
    async with asyncio.timeout(60):
        while not any(has_mapped(pid, weights) for pid in engines() - others):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)


def test_requests_during_a_reload_succeed_with_the_weights_they_name(
    reloaded: Running, changed: Path
) -> None:
    async def during(engine: LocalEngine) -> tuple[Generation, list[Generation], Generation]:
        await engine.reload(find_weights(), OLD)
        before, pid = await generate_text(engine), engine.pid
        generating = [asyncio.create_task(generate_text(engine, 16)) for _ in range(10)]
        await until(engine.slots.locked)  # a call of the engine could wait until all have finished
        await engine.reload(changed, NEW)
        assert pid is not None and not is_running(pid)
        return before, await asyncio.gather(*generating), await generate_text(engine)

    before, meanwhile, after = reloaded.run(during)
    assert before.text != after.text
    assert (before.weight_version, after.weight_version) == (OLD, NEW)
    first = {OLD: before.log_probs[0], NEW: after.log_probs[0]}
    assert abs(first[OLD] - first[NEW]) > 1
    assert {generation.weight_version for generation in meanwhile} == {OLD, NEW}
    for generation in meanwhile:
        assert len(generation.token_ids) == len(generation.log_probs) == 16
        assert generation.weight_version is not None
        assert generation.log_probs[0] == pytest.approx(first[generation.weight_version], abs=0.05)


def test_failed_reload_keeps_the_old_weights(reloaded: Running, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_text("no weights")

    async def failed_reload(engine: LocalEngine) -> tuple[Generation, Generation]:
        await engine.reload(find_weights(), OLD)
        before, pid = await generate_text(engine), engine.pid
        with pytest.raises(ConfigError, match=r"cannot run .*bad\.gguf"):
            await engine.reload(bad, NEW)
        assert engine.pid == pid
        return before, await generate_text(engine)

    before, after = reloaded.run(failed_reload)
    assert after.token_ids == before.token_ids
    assert after.weight_version == OLD


def test_engine_that_dies_after_a_reload_restarts_with_the_new_weights(
    reloaded: Running, changed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def killed(engine: LocalEngine) -> tuple[Generation, Generation]:
        await engine.reload(changed, NEW)
        before = await generate_text(engine)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        return before, await generate_text(engine)

    before, after = reloaded.run(killed)
    assert after.token_ids == before.token_ids
    assert after.weight_version == NEW
    assert "has been started again" in caplog.text


def test_reload_of_a_cancelled_caller_is_completed(reloaded: Running, changed: Path) -> None:
    async def abandoned(engine: LocalEngine) -> int | None:
        await engine.reload(changed, OLD)
        before = engines()
        reloading = asyncio.create_task(engine.reload(changed, NEW))
        await wait_until_loading(changed, before)
        assert reloading.cancel()
        return (await generate_text(engine)).weight_version

    assert reloaded.run(abandoned) == NEW


def test_stopping_during_a_reload_leaves_no_process(changed: Path) -> None:
    others = engines()

    async def stopped() -> None:
        engine = LocalEngine(EngineSettings(find_weights(), slots=1, context=128))
        await engine.start()
        before = engines()
        reloading = asyncio.create_task(engine.reload(changed))
        await wait_until_loading(changed, before)
        await engine.stop(0.0)
        with pytest.raises((EngineError, asyncio.CancelledError)):
            await reloading

    asyncio.run(stopped())
    assert engines() <= others
