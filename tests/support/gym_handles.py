"""Gym handles with scripted results, as a stream or as a batch, and the groups played with them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import torch

from nemo_rl.experience.gym_rollout import AsyncNemoGymRolloutImpl
from nemo_rl.experience.interfaces import PromptGroupRecord
from nemo_rl.experience.rollout_manager import RolloutManager
from tests.support.toy_tokenizer import ToyTokenizer
from tests.support.virtual_time import run_in_virtual_time

Row = dict[str, Any]
Result = dict[str, Any]

CONFIG: Any = {
    "backend": "gym",
    "max_new_tokens": 32,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": None,
    "stop_token_ids": None,
    "stop_strings": None,
}


def result(reward: float = 1.0, generation: Sequence[int] = (21, 2), **fields: Any) -> Result:
    """The result of a rollout with one turn after the prompt `11 12`."""
    return {
        "message_log": [
            {"role": "user", "content": "", "token_ids": torch.tensor([11, 12])},
            {
                "role": "assistant",
                "content": "",
                "token_ids": torch.tensor(generation),
                "generation_logprobs": torch.full((len(generation),), -0.5),
            },
        ],
        "full_result": {"reward": reward, **fields},
    }


Play = Callable[[Row], Awaitable[Result]]
"""Returns the result of a row, or raises."""


async def succeed(row: Row) -> Result:
    """Succeed; the first token identifies the row."""
    return result(reward=row["_rowidx"], generation=(20 + row["_rowidx"], 2))


class Handle:
    """Records the rows of each call, and which of them were cancelled."""

    def __init__(self, play: Play = succeed) -> None:
        self.play = play
        self.dispatches: list[list[int]] = []
        self.cancelled: list[int] = []
        self.rows: list[Row] = []

    def note(self, rows: Sequence[Row]) -> None:
        self.dispatches.append([row["_rowidx"] for row in rows])
        self.rows += rows

    async def played(self, row: Row) -> tuple[int, Result]:
        try:
            return row["_rowidx"], await self.play(row)
        except asyncio.CancelledError:
            self.cancelled.append(row["_rowidx"])
            raise


class Streaming(Handle):
    """`run_rollouts` is an async generator that yields rows as they finish."""

    async def run_rollouts(
        self, rows: list[Row], tokenizer: Any, timer_prefix: str
    ) -> AsyncIterator[tuple[int, Result, dict[str, float] | None]]:
        self.note(rows)
        tasks = [asyncio.create_task(self.played(row)) for row in rows]
        try:
            for number, done in enumerate(asyncio.as_completed(tasks), start=1):
                rowidx, row_result = await done
                timing = {f"{timer_prefix}/await_results": 0.25} if number == len(rows) else None
                yield rowidx, row_result, timing
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class Batch(Handle):
    """`run_rollouts` is a coroutine that returns all rows."""

    async def run_rollouts(
        self, rows: list[Row], tokenizer: Any, timer_prefix: str
    ) -> tuple[list[Result], dict[str, float]]:
        self.note(rows)
        results = await asyncio.gather(*map(self.played, rows))
        return [row_result for _, row_result in results], {f"{timer_prefix}/await_results": 0.25}


class Scripted(Handle):
    """A stream that yields the given rows and then raises the error, if any; one script per call."""

    def __init__(self, *scripts: tuple[list[Any], Exception | None]) -> None:
        super().__init__()
        self.scripts = list(scripts)

    async def run_rollouts(
        self, rows: list[Row], tokenizer: Any, timer_prefix: str
    ) -> AsyncIterator[tuple[Any, Result, None]]:
        self.note(rows)
        given, error = self.scripts.pop(0)
        for rowidx in given:
            yield rowidx, result(), None
        if error is not None:
            raise error


def sample(idx: int = 7, **fields: Any) -> Any:
    """A prompt as a trainer passes it."""
    params = {"input": [{"role": "user", "content": "11 12"}]}
    return {
        "message_log": [{"role": "user", "content": "", "token_ids": torch.zeros(0, dtype=torch.int64)}],
        "length": 0,
        "extra_env_info": {
            "responses_create_params": params,
            "agent_ref": {"type": "responses_api_agents", "name": "calc"},
            **fields,
        },
        "loss_multiplier": 1.0,
        "idx": idx,
    }


def implementation(handle: Any, n: int = 2, **options: Any) -> AsyncNemoGymRolloutImpl:
    settings: dict[str, Any] = {"max_seq_len": 16, "generation_config": CONFIG, **options}
    tokenizer: Any = ToyTokenizer()
    return AsyncNemoGymRolloutImpl(
        tokenizer=tokenizer, task_to_env={"nemo_gym": handle}, num_generations_per_prompt=n, **settings
    )


def managed(handle: Any, n: int = 2, **options: Any) -> RolloutManager:
    """A manager that plays through Gym."""
    tokenizer: Any = ToyTokenizer()
    return RolloutManager(
        tokenizer, {"nemo_gym": handle}, n, 16, generation_config=CONFIG, use_nemo_gym=True, **options
    )


def play_group(handle: Any, n: int = 2, **options: Any) -> PromptGroupRecord:
    """Play one group in virtual time: a timeout ends only what waits, however slow the machine is."""
    record, _ = run_in_virtual_time(implementation(handle, n, **options).run_rollout(sample()))
    return record
