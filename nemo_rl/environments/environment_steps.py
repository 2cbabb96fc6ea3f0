"""Steps of environments: plain objects, coroutines, Ray actors.

A plain object is called in a thread (`step_threads.py`), by default one call at a time, because all
trajectories share it. Coroutines and actors are awaited.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nemo_rl.environments.interfaces import EnvironmentReturn
from nemo_rl.environments.step_threads import StepThreads, threads_of
from nemo_rl.experience.retry_budgets import within
from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    import torch

    from nemo_rl.data.interfaces import LLMMessageLogType
else:
    torch = lazy("torch")


class EnvironmentDispatch:
    """The environments of a run, by task."""

    def __init__(
        self, task_to_env: Mapping[str, Any], concurrency: int = 1, *, step_limit_s: float | None = None
    ) -> None:
        """`concurrency` limits plain objects. A step longer than `step_limit_s` raises RolloutTimeout."""
        if concurrency < 1:
            raise ValueError(f"env_concurrency must be 1 or more, not {concurrency}")
        self._task_to_env = task_to_env
        self._concurrency = concurrency
        self._step_limit_s = step_limit_s
        self._steppers: dict[int, _Stepper] = {}
        """By the id of the environment, which may serve several tasks."""

    async def step(
        self, tasks: Sequence[str], message_logs: Sequence[LLMMessageLogType], metadata: Sequence[Any]
    ) -> EnvironmentReturn[Any]:
        """Step a batch. The rows of one task go to its environment together, different tasks concurrently."""
        if len(set(tasks)) == 1:
            return await self._step_task(tasks[0], message_logs, metadata)
        rows_by_task: dict[str, list[int]] = {}
        for row, task in enumerate(tasks):
            rows_by_task.setdefault(task, []).append(row)
        for task in rows_by_task:
            self._environment(task)  # raises before anything is stepped
        returns = await asyncio.gather(
            *(
                self._step_task(task, [message_logs[row] for row in rows], [metadata[row] for row in rows])
                for task, rows in rows_by_task.items()
            )
        )
        return _in_row_order(list(rows_by_task.values()), returns)

    def _environment(self, task: str) -> Any:
        if task not in self._task_to_env:
            known = ", ".join(map(repr, self._task_to_env)) or "none"
            raise ValueError(f"no environment for task {task!r}; known tasks: {known}")
        return self._task_to_env[task]

    async def _step_task(
        self, task: str, message_logs: Sequence[LLMMessageLogType], metadata: Sequence[Any]
    ) -> EnvironmentReturn[Any]:
        environment = self._environment(task)
        batch = [_visible(message_log) for message_log in message_logs]
        stepper = self._steppers.get(id(environment))
        if stepper is None:
            stepper = self._steppers[id(environment)] = _Stepper(environment, self._concurrency)
        if stepper.threads is not None:
            result = await stepper.threads.run(
                stepper.step, batch, list(metadata), limit_s=self._step_limit_s
            )
        else:
            result = stepper.step(batch, list(metadata))
        if inspect.isawaitable(result):
            async with within(self._step_limit_s, "a step of the environment"):
                result = await result
        return _checked(result, len(batch), f"the environment of task {task!r}")


class _Stepper:
    """How one environment is stepped, determined once."""

    def __init__(self, environment: Any, concurrency: int) -> None:
        self.environment = environment  # a reference, so that no other object gets its id
        step = environment.step
        self.step = getattr(step, "remote", step)  # a Ray actor returns an awaitable
        self.threads: StepThreads | None = None
        """Only for a plain object."""
        if self.step is step and not inspect.iscoroutinefunction(step):
            self.threads = threads_of(environment)
            self.threads.allow(concurrency)


def _checked(returned: Any, rows: int, who: str) -> EnvironmentReturn[Any]:
    """The result of a step, with lists in place of omitted fields; TypeError if it is not valid."""
    if not isinstance(returned, tuple) or len(returned) != len(EnvironmentReturn._fields):
        raise TypeError(
            f"step of {who} returned {type(returned).__name__}; "
            f"expected an EnvironmentReturn({', '.join(EnvironmentReturn._fields)})"
        )
    observations, metadata, next_stop_strings, rewards, terminateds, answers = returned
    nothing: list[Any] = [None] * rows
    metadata = nothing if metadata is None else metadata
    next_stop_strings = nothing if next_stop_strings is None else next_stop_strings
    answers = nothing if answers is None else answers
    result = EnvironmentReturn(observations, metadata, next_stop_strings, rewards, terminateds, answers)
    for field, values in zip(result._fields, result, strict=True):
        if field != "rewards" and _length(values) != rows:
            raise TypeError(
                f"step of {who} returned {field} {values!r}; expected one for each of {rows} rows"
            )
    if isinstance(rewards, torch.Tensor) and rewards.shape != (rows,):
        raise TypeError(f"step of {who} returned rewards of shape {list(rewards.shape)}; expected [{rows}]")
    for observation in observations:
        if not (
            isinstance(observation, Mapping)
            and isinstance(observation.get("role"), str)
            and isinstance(observation.get("content"), str)
        ):
            raise TypeError(
                f"step of {who} returned the observation {observation!r}; expected a dict of role and content"
            )
    return result


def _length(values: Any) -> int | None:
    """The number of rows; None if the value has none."""
    if type(values) is list:
        return len(values)
    if isinstance(values, torch.Tensor):
        return values.numel() if values.dim() == 1 else None
    return len(values) if isinstance(values, Sequence) and not isinstance(values, str) else None


def _visible(message_log: LLMMessageLogType) -> LLMMessageLogType:
    """The part of a conversation that an environment sees."""
    return [{"role": message["role"], "content": message["content"]} for message in message_log]


def _in_row_order(
    rows_of: list[list[int]], returns: Sequence[EnvironmentReturn[Any]]
) -> EnvironmentReturn[Any]:
    """The results of several tasks as one, in the order of the rows."""
    order = [row for rows in rows_of for row in rows]
    place = sorted(range(len(order)), key=order.__getitem__)

    def joined(field: str) -> list[Any]:
        values = [value for one in returns for value in getattr(one, field)]
        return [values[position] for position in place]

    if any(isinstance(one.rewards, Mapping) for one in returns):
        if not all(isinstance(one.rewards, Mapping) for one in returns):
            raise AssertionError(
                "some environments return rewards by name and some a tensor; a batch cannot have both"
            )
        names = list(returns[0].rewards)
        rewards: Any = {name: torch.cat([one.rewards[name] for one in returns])[place] for name in names}
    else:
        tensors: list[Any] = [one.rewards for one in returns]
        rewards = torch.cat(tensors)[place]
    return EnvironmentReturn(
        observations=joined("observations"),
        metadata=joined("metadata"),
        next_stop_strings=joined("next_stop_strings"),
        rewards=rewards,
        terminateds=torch.cat([one.terminateds for one in returns])[place],
        answers=joined("answers"),
    )
