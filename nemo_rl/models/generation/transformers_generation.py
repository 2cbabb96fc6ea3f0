"""`TransformersGeneration`: a transformers model in this process as a generation backend.

All requests, from coroutines and from `generate`, run in one batch on one thread (`batching.py`). Stop tokens
and stop strings stay in the output. A generation that reaches its token limit is `truncated`; if the prompt
leaves no room, the output is the prompt.
"""

from __future__ import annotations

import asyncio
import logging
import random
import weakref
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.lazy import lazy
from nemo_rl.models.generation.batching import BatchingLoop
from nemo_rl.models.generation.inference import check_model
from nemo_rl.models.generation.interfaces import (
    GenerationConfig,
    GenerationDatumSpec,
    GenerationInterface,
    GenerationOutputSpec,
)
from nemo_rl.models.generation.requests import Generated, Request
from nemo_rl.models.generation.sampling import LogprobsMode, Sampling
from nemo_rl.models.generation.slot_decoder import SlotDecoder
from nemo_rl.models.generation.stopping import StopRule, end_of_sequence_ids, stop_strings

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
else:
    torch = lazy("torch")

logger = logging.getLogger(__name__)


class TransformersGeneration(GenerationInterface):
    """Generates with `model`, which may also be a learner's: see `paused`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: GenerationConfig,
        *,
        max_model_len: int,
        max_batch_size: int = 32,
        logprobs_mode: LogprobsMode = "processed",
        seed: int | None = None,
    ) -> None:
        """`seed` seeds the requests that have no seed of their own; None: a random one."""
        for name, value in (("max_model_len", max_model_len), ("max_batch_size", max_batch_size)):
            if value < 1:
                raise ValueError(f"{name} must be 1 or more, not {value}")
        if config["max_new_tokens"] < 1:
            raise ValueError(f"max_new_tokens must be 1 or more, not {config['max_new_tokens']}")
        check_model(model, max_model_len)
        self._tokenizer = tokenizer
        self._max_new_tokens = config["max_new_tokens"]
        self._max_model_len = max_model_len
        self._sampling = Sampling.from_config(config, logprobs_mode)
        self._stop_ids = end_of_sequence_ids(model, tokenizer).union(config.get("stop_token_ids") or ())
        self._stop_strings = stop_strings(config.get("stop_strings"))
        pad_id = config.get("_pad_token_id", tokenizer.pad_token_id)
        self._pad_id = 0 if pad_id is None else pad_id
        self._vocabulary: int = model.config.get_text_config().vocab_size
        self._seeds = random.Random(seed)
        decoder = SlotDecoder(model, max_rows=max_batch_size, max_model_len=max_model_len)
        self._loop = BatchingLoop(decoder)
        # Also runs at interpreter exit. The loop's thread holds no reference to this object.
        self._close = weakref.finalize(self, self._loop.close)

    async def generate_async(
        self, data: BatchedDataDict[GenerationDatumSpec], greedy: bool = False
    ) -> AsyncGenerator[tuple[int, BatchedDataDict[GenerationOutputSpec]], None]:
        """Continue a batch of one; cancelling the caller takes the request out of the batch."""
        if len(data["input_ids"]) != 1:
            raise AssertionError(
                f"generate_async continues one prompt, not {len(data['input_ids'])}; use generate for several"
            )
        [future] = self._submit(data, greedy)
        yield 0, self._output([await asyncio.wrap_future(future)])

    def generate(
        self, data: BatchedDataDict[GenerationDatumSpec], greedy: bool = False
    ) -> BatchedDataDict[GenerationOutputSpec]:
        """Continue a whole batch, of any size."""
        futures = self._submit(data, greedy)
        try:
            return self._output([future.result() for future in futures])
        finally:
            for future in futures:
                future.cancel()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No generation inside this context; nothing computed before it is used after it.

        A learner changes the weights here. Requests in flight finish first, with the weights that they
        started with; new requests wait.
        """
        with self._loop.paused():
            try:
                yield
            finally:
                self._loop.forget()

    def invalidate_kv_cache(self) -> bool:
        """Later requests compute their prompts again; those in flight continue."""
        return self._loop.forget()

    def init_collective(self, ip: str, port: int, world_size: int, **kwargs: Any) -> list[Any]:
        """Nothing to join: the weights are those of this process's model."""
        return []

    def prepare_for_generation(self, *args: Any, **kwargs: Any) -> bool:
        """Nothing to do: memory is allocated as needed."""
        return True

    def finish_generation(self, *args: Any, **kwargs: Any) -> bool:
        """Free the memory of the KV cache after the requests in flight have finished."""
        self._loop.release()
        return True

    def get_logger_metrics(self) -> dict[str, Any]:
        """Sums and means since the beginning."""
        return self._loop.metrics()

    def close(self) -> None:
        """End the thread; requests that have not finished fail. May be called again."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, data: BatchedDataDict[GenerationDatumSpec], greedy: bool) -> list[Future[Generated]]:
        requests = self._requests(data, self._sampling.as_greedy() if greedy else self._sampling)
        for request in requests:
            if request.room:
                self._loop.submit(request)
            else:
                logger.warning(
                    "a prompt of %d tokens leaves no room to generate in max_model_len %d",
                    len(request.prompt),
                    self._max_model_len,
                )
                request.finish()
        return [request.future for request in requests]

    def _requests(self, data: BatchedDataDict[GenerationDatumSpec], sampling: Sampling) -> list[Request]:
        prompts = self._prompts(data)
        texts_B = _one_each("stop_strings", data.get("stop_strings"), len(prompts))
        seeds_B = _one_each("seeds", data.get("seeds"), len(prompts))
        return [
            Request(
                prompt=prompt,
                room=max(0, min(self._max_new_tokens, self._max_model_len - len(prompt))),
                sampling=sampling,
                stop=StopRule(self._stop_ids, stop_strings(self._stop_strings, texts), self._tokenizer),
                generator=_generator(self._seeds.getrandbits(63) if seed is None else int(seed)),
            )
            for prompt, texts, seed in zip(prompts, texts_B, seeds_B, strict=True)
        ]

    def _prompts(self, data: BatchedDataDict[GenerationDatumSpec]) -> list[list[int]]:
        """Prompts without padding. Tokens outside the vocabulary are rejected before they join a batch."""
        prompts: list[list[int]] = []
        for row, (ids, length) in enumerate(zip(data["input_ids"], data["input_lengths"], strict=True)):
            if not 1 <= int(length) <= len(ids):
                raise ValueError(
                    f"input_lengths[{row}] is {int(length)}; it must be from 1 to {len(ids)}, the width of "
                    "input_ids"
                )
            prompt = [int(token) for token in ids[: int(length)].tolist()]
            if not 0 <= min(prompt) <= max(prompt) < self._vocabulary:
                raise ValueError(
                    f"input_ids[{row}] has tokens that are not within 0 to {self._vocabulary - 1}"
                )
            prompts.append(prompt)
        return prompts

    def _output(self, results: Sequence[Generated]) -> BatchedDataDict[GenerationOutputSpec]:
        lengths = [len(result.prompt) + len(result.tokens) for result in results]
        shape = (len(results), max(lengths, default=0))
        output_ids = torch.full(shape, self._pad_id, dtype=torch.int64)
        logprobs = torch.zeros(shape, dtype=torch.float32)
        for row, (result, length) in enumerate(zip(results, lengths, strict=True)):
            output_ids[row, :length] = torch.tensor(result.prompt + result.tokens)
            logprobs[row, len(result.prompt) : length] = torch.tensor(result.logprobs)
        return BatchedDataDict[GenerationOutputSpec](
            output_ids=output_ids,
            generation_lengths=torch.tensor([len(result.tokens) for result in results], dtype=torch.int64),
            unpadded_sequence_lengths=torch.tensor(lengths, dtype=torch.int64),
            logprobs=logprobs,
            truncated=torch.tensor([result.truncated for result in results], dtype=torch.bool),
        )


def _one_each(name: str, given: Sequence[Any] | None, count: int) -> Sequence[Any]:
    if given is None:
        return [None] * count
    if len(given) != count:
        raise ValueError(f"{name} has {len(given)} entries for {count} prompts")
    return given


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % 2**63)
