"""The overhead of the rollout manager: many concurrent groups, with a policy that takes no time.

Everything counts except the bodies of the policy's and the environment's calls; threads and tokenizer are
included. The figure is the median round. The best round is printed too, because other load on the machine
only adds time. Both kinds of environment alternate, so that a slow phase of the machine affects both.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from statistics import median
from typing import Any

import torch

from bench.report import Bar, report
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.environments.interfaces import EnvironmentReturn
from nemo_rl.experience.rollout_manager import RolloutManager

BAR_US = 300.0
GROUPS, MEMBERS = 64, 8
PROMPT_TOKENS, NEW_TOKENS = 128, 32
ROUNDS = 100


class Tokenizer:
    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return " ".join(map(str, token_ids))


class Policy:
    """Generates the same output for every request, after other tasks have run."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        length = PROMPT_TOKENS + NEW_TOKENS
        self._output: BatchedDataDict[Any] = BatchedDataDict(
            output_ids=torch.arange(length).unsqueeze(0),
            generation_lengths=torch.tensor([NEW_TOKENS]),
            unpadded_sequence_lengths=torch.tensor([length]),
            logprobs=torch.full((1, length), -0.5),
            truncated=torch.tensor([False]),
        )

    async def generate_async(
        self, data: BatchedDataDict[Any], greedy: bool = False
    ) -> AsyncIterator[tuple[int, BatchedDataDict[Any]]]:
        await asyncio.sleep(0)
        yield 0, self._output


class Environment:
    def __init__(self) -> None:
        self.spent_s = 0.0

    def step(self, logs: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
        began = time.thread_time()  # CPU time: a thread also waits for the interpreter lock
        result = EnvironmentReturn[Any](
            observations=[{"role": "environment", "content": "31 32"}],
            metadata=[None],
            next_stop_strings=None,
            rewards=torch.tensor([1.0]),
            terminateds=torch.tensor([True]),
            answers=None,
        )
        self.spent_s += time.thread_time() - began
        return result


class CoroutineEnvironment(Environment):
    async def step(self, logs: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:  # type: ignore[override]
        return super().step(logs, metadata)


def sample(idx: int) -> Any:
    log = [{"role": "user", "content": "x", "token_ids": torch.arange(PROMPT_TOKENS)}]
    return {"message_log": log, "extra_env_info": {"answer": "x"}, "idx": idx, "task_name": "toy"}


async def round_us(environment: Environment) -> float:
    """Microseconds per completion in one round of groups, without the environment's own time."""
    tokenizer, policy = Tokenizer(), Policy()
    manager = RolloutManager(tokenizer, {"toy": environment}, MEMBERS, 1024, 1, policy)  # type: ignore[arg-type,dict-item]
    samples = [sample(idx) for idx in range(GROUPS)]
    environment.spent_s, began = 0.0, time.perf_counter()
    await asyncio.gather(*(manager.run_rollout(one) for one in samples))
    return (time.perf_counter() - began - environment.spent_s) / (GROUPS * MEMBERS) * 1e6


def bar(what: str, rounds: list[float]) -> Bar:
    print(f"  {what}: best {min(rounds):.0f} µs, median {median(rounds):.0f} µs per completion")
    return Bar(f"µs per completion, {GROUPS} groups of {MEMBERS}, {what}", median(rounds), BAR_US)


def main() -> bool:
    torch.set_num_threads(1)
    environments = {"environment in a thread": Environment(), "coroutine": CoroutineEnvironment()}
    rounds: dict[str, list[float]] = {what: [] for what in environments}
    for _ in range(ROUNDS):
        for what, environment in environments.items():
            rounds[what].append(asyncio.run(round_us(environment)))
    return report("rollout manager", [bar(what, taken) for what, taken in rounds.items()])


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
