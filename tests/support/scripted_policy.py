"""A policy and an environment that follow a script, for rollouts in which every token is known."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn


@dataclass
class Turn:
    """The output of the policy in one turn."""

    token_ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    truncated: bool = False
    worker: int | list[int] | None = None
    error: Exception | None = None
    after: asyncio.Event | None = None
    """The policy waits for it before it responds."""
    sets: asyncio.Event | None = None
    """Set when the policy responds."""


@dataclass
class Step:
    """The reaction of the environment to a turn."""

    observation: str = "31"
    reward: float = 0.0
    terminated: bool = False
    metadata: dict[str, Any] | None = None
    next_stops: list[str] | None = None
    error: Exception | None = None
    role: str = "environment"


@dataclass
class ScriptedGeneration:
    """Responds to a request with the next turn of its trajectory in the script.

    Trajectories are numbered by the order of their first requests.
    """

    script: Sequence[Sequence[Turn]]
    with_logprobs: bool = True
    requests: list[BatchedDataDict[Any]] = field(default_factory=list)
    _begun: int = 0
    _turns: dict[int, int] = field(default_factory=dict)

    async def generate_async(
        self, data: BatchedDataDict[Any], greedy: bool = False
    ) -> AsyncIterator[tuple[int, BatchedDataDict[Any]]]:
        self.requests.append(data)
        trajectory = self._trajectory()
        turn = self.script[trajectory][self._turns[trajectory]]
        self._turns[trajectory] += 1
        if turn.after is not None:
            await turn.after.wait()
        if turn.error is not None:
            raise turn.error
        if turn.sets is not None:
            turn.sets.set()
        yield 0, self._output(data, turn)

    def _trajectory(self) -> int:
        """The number of the trajectory that the current asyncio task plays."""
        task: Any = asyncio.current_task()
        number: int = getattr(task, "scripted_trajectory", -1)
        if number < 0:
            number = task.scripted_trajectory = self._begun
            self._turns[number] = 0
            self._begun += 1
        return number

    def _output(self, data: BatchedDataDict[Any], turn: Turn) -> BatchedDataDict[Any]:
        length = int(data["input_lengths"][0])
        prompt = data["input_ids"][0, :length].tolist()
        logprobs = [-0.5] * len(turn.token_ids) if turn.logprobs is None else list(turn.logprobs)
        padding = [0, 0]
        output: BatchedDataDict[Any] = BatchedDataDict(
            output_ids=torch.tensor([[*prompt, *turn.token_ids, *padding]], dtype=torch.int64),
            generation_lengths=torch.tensor([len(turn.token_ids)]),
            unpadded_sequence_lengths=torch.tensor([length + len(turn.token_ids)]),
            truncated=torch.tensor([turn.truncated]),
        )
        if self.with_logprobs:
            output["logprobs"] = torch.tensor([[0.0] * length + logprobs + [0.0, 0.0]], dtype=torch.float32)
        if turn.worker is not None:
            output["gen_leader_worker_idx"] = [turn.worker]
        return output


@dataclass
class ScriptedEnvironment(EnvironmentInterface[dict[str, Any]]):
    """Responds to the n-th turn of a conversation with the n-th step of the script."""

    script: Sequence[Step]
    seen: list[tuple[list[Any], list[Any]]] = field(default_factory=list)

    def step(self, message_log_batch: list[Any], metadata: list[Any]) -> EnvironmentReturn[dict[str, Any]]:
        self.seen.append((message_log_batch, metadata))
        taken = sum(message["role"] == "environment" for message in message_log_batch[0])
        step = self.script[min(taken, len(self.script) - 1)]
        if step.error is not None:
            raise step.error
        return EnvironmentReturn(
            observations=[{"role": step.role, "content": step.observation}],
            metadata=[step.metadata],
            next_stop_strings=[step.next_stops],
            rewards=torch.tensor([step.reward]),
            terminateds=torch.tensor([step.terminated]),
            answers=None,
        )

    def global_post_process_and_metrics(
        self, batch: BatchedDataDict[Any]
    ) -> tuple[BatchedDataDict[Any], dict[str, Any]]:
        raise AssertionError("a rollout must not call this")
