"""Requests from coroutines: batched together, cancelled, failed, paused, closed."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from nemo_rl.experience.failures import NoHealthyShards
from nemo_rl.models.generation.transformers_generation import TransformersGeneration
from tests.support.commands import ROOT, wait_until
from tests.support.generations import batch_of, generated_tokens, generation_config, last_output, rescored_gap
from tests.support.tiny_models import tiny_llama, tiny_tokenizer

pytestmark = pytest.mark.torch

WAIT_S = 30
ANY_WORD = "w<.,=+:?012345"
"""Each word contains one of these characters."""


def endless_llama() -> PreTrainedModel:
    """A model without an end-of-sequence token: it generates as many tokens as allowed."""
    model = tiny_llama()
    model.generation_config.eos_token_id = None
    return model


def new_generation(
    model: PreTrainedModel, *, max_batch_size: int = 8, **changes: Any
) -> TransformersGeneration:
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    config = generation_config(**changes)
    return TransformersGeneration(
        model, tokenizer, config, max_model_len=400, max_batch_size=max_batch_size, seed=0
    )


@contextmanager
def before_each_pass(model: PreTrainedModel, act: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Call `act` with the ids of each pass, in the generating thread."""
    hook = model.register_forward_pre_hook(lambda _, __, given: act(given["input_ids"]), with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


class Gate:
    """Blocks the generating thread before a pass until the gate is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _: object = None) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_S)

    async def wait_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, WAIT_S)


def request(*prompt: int, seed: int = 0) -> Any:
    return batch_of([prompt], seeds=[seed])


@pytest.mark.fast_path  # one pass per sequence otherwise
def test_coroutines_run_together_in_one_batch() -> None:
    model = endless_llama()
    rows_of_passes: list[int] = []
    gate = Gate()

    def watch(ids: torch.Tensor) -> None:
        rows_of_passes.append(len(ids))
        gate()

    async def run() -> None:
        with new_generation(model) as generation, before_each_pass(model, watch):
            first = asyncio.create_task(last_output(generation, request(5)))
            await gate.wait_reached()
            others = [asyncio.create_task(last_output(generation, request(6, seed=i))) for i in range(7)]
            await asyncio.sleep(0)  # all of them submit
            gate.opened.set()
            await asyncio.gather(first, *others)
            assert generation.get_logger_metrics()["mean_batch_size"] > 7

    asyncio.run(run())
    assert rows_of_passes == [1, *[8] * 23, 7]


def test_a_late_request_joins_and_leaves_while_others_run() -> None:
    model = endless_llama()
    joining, leaving = Gate(), Gate()
    gates = {10: joining, 30: leaving}
    passes: list[int] = []

    def watch(ids: torch.Tensor) -> None:
        passes.append(len(ids))
        if gate := gates.get(len(passes)):
            gate()

    async def run() -> list[Any]:
        with new_generation(model, max_new_tokens=60) as generation, before_each_pass(model, watch):
            early = asyncio.create_task(last_output(generation, request(5, 6, 7)))
            await joining.wait_reached()
            stop_soon = batch_of([[5, 6, 7, 8]], seeds=[1], stop_strings=[list(ANY_WORD)])
            late = asyncio.create_task(last_output(generation, stop_soon))
            await asyncio.sleep(0)
            joining.opened.set()
            late_output = await late  # at the latest in pass 30, before which the thread stops again
            assert not early.done()
            leaving.opened.set()
            return [await early, late_output]

    outputs = asyncio.run(run())
    assert [output["generation_lengths"].item() for output in outputs] == [60, 1]
    assert all(rescored_gap(model, output) < 1e-4 for output in outputs)


@pytest.mark.fast_path  # one pass per sequence otherwise
def test_requests_beyond_the_batch_size_wait() -> None:
    model = endless_llama()
    widest = 0

    def watch(ids: torch.Tensor) -> None:
        nonlocal widest
        widest = max(widest, len(ids))

    async def run() -> list[Any]:
        with new_generation(model, max_batch_size=3) as generation, before_each_pass(model, watch):
            return await asyncio.gather(*(last_output(generation, request(5, i)) for i in range(4, 14)))

    outputs = asyncio.run(run())
    assert widest == 3
    assert [output["generation_lengths"].item() for output in outputs] == [24] * 10


def test_cancelling_a_coroutine_removes_its_request_from_the_batch() -> None:
    model = endless_llama()
    gate = Gate()
    rows_of_passes: list[int] = []

    def watch(ids: torch.Tensor) -> None:
        rows_of_passes.append(len(ids))
        if len(rows_of_passes) == 5:
            gate()

    async def run() -> list[Any]:
        with new_generation(model, max_batch_size=2) as generation, before_each_pass(model, watch):
            tasks = [asyncio.create_task(last_output(generation, request(5, seed=i))) for i in range(3)]
            await gate.wait_reached()
            tasks[0].cancel()  # in flight
            tasks[2].cancel()  # waiting
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            gate.opened.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(run())
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, False, True]
    assert results[1]["generation_lengths"].tolist() == [24]
    assert rescored_gap(model, results[1]) < 1e-4
    assert sum(rows_of_passes) < 24 + 10


def test_an_error_of_the_model_fails_the_requests_in_flight_but_no_later_ones() -> None:
    model = endless_llama()
    passes = 0

    def fail_once(_: torch.Tensor) -> None:
        nonlocal passes
        passes += 1
        if passes == 6:
            raise MemoryError("no memory for this pass")

    async def run() -> Any:
        with new_generation(model) as generation, before_each_pass(model, fail_once):
            coroutines = [last_output(generation, request(5, 6, seed=i)) for i in range(3)]
            results = await asyncio.gather(*coroutines, return_exceptions=True)
            assert [str(result) for result in results] == ["no memory for this pass"] * 3
            return await last_output(generation, request(5, 6, seed=1))

    assert rescored_gap(model, asyncio.run(run())) < 1e-4


def test_generate_raises_the_error_of_the_model() -> None:
    model = endless_llama()

    def fail(_: torch.Tensor) -> None:
        raise MemoryError("no memory")

    with new_generation(model) as generation:
        with before_each_pass(model, fail), pytest.raises(MemoryError, match="no memory"):
            generation.generate(batch_of([[5, 6], [7]]))
        assert generation.generate(batch_of([[5, 6], [7]])).size == 2


def test_paused_waits_for_running_requests_and_delays_new_ones() -> None:
    model = endless_llama()
    gate = Gate()

    async def run() -> None:
        with new_generation(model) as generation, before_each_pass(model, gate):
            running = asyncio.create_task(last_output(generation, request(5, 6, 7, seed=3)))
            await gate.wait_reached()
            learner = asyncio.create_task(asyncio.to_thread(learn, generation))
            assert await asyncio.to_thread(wait_until, lambda: generation._loop._pauses == 1)
            gate.opened.set()
            before = await running
            after = await last_output(generation, request(5, 6, 7, seed=3))
            await learner
        assert rescored_gap(model, after) < 1e-4
        with torch.no_grad():
            model.lm_head.weight.mul_(-1)
        assert rescored_gap(model, before) < 1e-4
        assert generated_tokens(before) != generated_tokens(after)

    def learn(generation: TransformersGeneration) -> None:
        with generation.paused(), torch.no_grad():
            assert model.config._attn_implementation == "sdpa"
            model.lm_head.weight.mul_(-1)

    asyncio.run(run())


def test_cache_from_before_a_pause_is_not_used() -> None:
    model = endless_llama()
    data = request(*range(4, 24))
    with new_generation(model) as generation:
        generation.generate(data)
        with generation.paused(), torch.no_grad():
            model.model.embed_tokens.weight.mul_(-1)
        assert rescored_gap(model, generation.generate(data)) < 1e-4
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(0.5)
        assert generation.invalidate_kv_cache()
        assert not generation.invalidate_kv_cache()
        assert rescored_gap(model, generation.generate(data)) < 1e-4


def test_the_model_is_restored_before_the_last_request_returns() -> None:
    model = endless_llama().train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    seen: list[Any] = []

    def watch(_: torch.Tensor) -> None:
        seen.append((any(module.training for module in model.modules()), torch.is_grad_enabled()))

    with new_generation(model, max_new_tokens=2) as generation, before_each_pass(model, watch):
        for seed in range(20):
            generation.generate(request(5, 6, seed=seed))
            assert [module.training for module in model.modules()] == modes
            assert model.config._attn_implementation == "sdpa"
    assert set(seen) == {(False, False)}
    model(torch.tensor([[5, 6]])).logits.sum().backward()


def test_two_backends_of_one_model_take_turns_and_restore_it() -> None:
    model = endless_llama().train()

    async def run() -> list[Any]:
        with new_generation(model) as one, new_generation(model) as other:
            coroutines = [
                last_output(backend, request(5, n)) for n in range(4, 9) for backend in (one, other)
            ]
            return await asyncio.gather(*coroutines)

    outputs = asyncio.run(run())
    assert all(module.training for module in model.modules())
    assert model.config._attn_implementation == "sdpa"
    model.eval()
    assert all(rescored_gap(model, output) < 1e-4 for output in outputs)


def test_close_fails_unfinished_requests_and_rejects_new_ones() -> None:
    model = endless_llama()
    gate = Gate()

    async def run() -> None:
        generation = new_generation(model, max_batch_size=1)
        with before_each_pass(model, gate):
            tasks = [asyncio.create_task(last_output(generation, request(5, seed=i))) for i in range(2)]
            await gate.wait_reached()
            closing = asyncio.create_task(asyncio.to_thread(generation.close))
            assert await asyncio.to_thread(wait_until, lambda: generation._loop._is_closed)
            gate.opened.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await closing
        assert ["closed" in str(result) for result in results] == [True, True]
        with pytest.raises(NoHealthyShards, match="closed"):
            await last_output(generation, request(5))
        generation.close()

    asyncio.run(run())


def test_a_garbage_collected_backend_ends_its_thread() -> None:
    model = endless_llama()
    generation = new_generation(model, max_new_tokens=1)
    generation.generate(request(5))
    [thread] = [thread for thread in threading.enumerate() if thread.name == "generation"]
    gone = weakref.ref(generation)
    del generation
    gc.collect()
    assert gone() is None
    thread.join(WAIT_S)
    assert not thread.is_alive()


EXITING = """
import asyncio
from tests.support.generations import batch_of, generation_config, last_output
from tests.support.tiny_models import tiny_llama, tiny_tokenizer
from nemo_rl.models.generation.transformers_generation import TransformersGeneration

model = tiny_llama()
generation = TransformersGeneration(
    model, tiny_tokenizer(), generation_config(max_new_tokens=400), max_model_len=500
)

async def run():
    started, loop = asyncio.Event(), asyncio.get_running_loop()
    model.register_forward_hook(lambda *_: loop.call_soon_threadsafe(started.set))
    tasks = [asyncio.create_task(last_output(generation, batch_of([[5, n]]))) for n in range(4, 20)]
    await started.wait()
    print("exiting", flush=True)
    raise SystemExit(3)

asyncio.run(run())
"""


def test_the_interpreter_can_exit_while_requests_run() -> None:
    exited = subprocess.run(
        [sys.executable, "-c", EXITING], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (exited.returncode, exited.stdout) == (3, "exiting\n"), exited.stderr
