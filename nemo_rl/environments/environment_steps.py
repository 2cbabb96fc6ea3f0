"""Steps of environments, whatever they are: plain objects, coroutines, Ray actors.

A plain object is called in a thread, one call at a time unless told otherwise, since all trajectories share
it (`step_threads.py`). Coroutines and actors are awaited.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nemo_rl.environments.interfaces import EnvironmentReturn
from nemo_rl.environments.step_threads import StepThreads, threads_of
from nemo_rl.experience.retry import within
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
        """`concurrency` is that of plain objects; a step that takes longer than its limit: RolloutTimeout."""
        if concurrency < 1:
            raise ValueError(f"env_concurrency must be 1 or more, not {concurrency}")
        self._task_to_env = task_to_env
        self._concurrency = concurrency
        self._step_limit_s = step_limit_s
        self._ways: dict[int, _Way] = {}
        """By environment: one may serve several tasks."""

    async def step(
        self, tasks: Sequence[str], message_logs: Sequence[LLMMessageLogType], metadata: Sequence[Any]
    ) -> EnvironmentReturn[Any]:
        """Step a batch; rows of one task go to its environment together, tasks at the same time."""
        if len(set(tasks)) == 1:
            return await self._step_task(tasks[0], message_logs, metadata)
        rows_by_task: dict[str, list[int]] = {}
        for row, task in enumerate(tasks):
            rows_by_task.setdefault(task, []).append(row)
        for task in rows_by_task:
            self._environment(task)  # before anything is stepped
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
            raise ValueError(f"no environment for task {task!r}; there are {known}")
        return self._task_to_env[task]

    async def _step_task(
        self, task: str, message_logs: Sequence[LLMMessageLogType], metadata: Sequence[Any]
    ) -> EnvironmentReturn[Any]:
        environment = self._environment(task)
        batch = [_as_shown(message_log) for message_log in message_logs]
        way = self._ways.get(id(environment))
        if way is None:
            way = self._ways[id(environment)] = _Way(environment, self._concurrency)
        if way.threads is not None:
            given = await way.threads.run(way.step, batch, list(metadata), limit_s=self._step_limit_s)
        else:
            given = way.step(batch, list(metadata))
        if inspect.isawaitable(given):
            async with within(self._step_limit_s, "a step of the environment"):
                given = await given
        return _checked(given, len(batch), f"the environment of task {task!r}")


class _Way:
    """How one environment is stepped, found out once."""

    def __init__(self, environment: Any, concurrency: int) -> None:
        self.environment = environment  # kept, so that no other gets its id
        step = environment.step
        self.step = getattr(step, "remote", step)  # what a Ray actor gives can be awaited
        self.threads: StepThreads | None = None
        """Of a plain object."""
        if self.step is step and not inspect.iscoroutinefunction(step):
            self.threads = threads_of(environment)
            self.threads.allow(concurrency)


def _checked(given: Any, rows: int, who: str) -> EnvironmentReturn[Any]:
    """What a step gave, with lists in the place of what was left out; TypeError where it does not fit."""
    if not isinstance(given, tuple) or len(given) != len(EnvironmentReturn._fields):
        raise TypeError(
            f"{who} gave {type(given).__name__} from step; "
            f"it is to give an EnvironmentReturn({', '.join(EnvironmentReturn._fields)})"
        )
    observations, metadata, next_stop_strings, rewards, terminateds, answers = given
    nothing: list[Any] = [None] * rows
    metadata = nothing if metadata is None else metadata
    next_stop_strings = nothing if next_stop_strings is None else next_stop_strings
    answers = nothing if answers is None else answers
    result = EnvironmentReturn(observations, metadata, next_stop_strings, rewards, terminateds, answers)
    for field, values in zip(result._fields, result, strict=True):
        if field != "rewards" and _length(values) != rows:
            raise TypeError(f"{who} gave {field} {values!r}; it is to give one of each of {rows}")
    if isinstance(rewards, torch.Tensor) and rewards.shape != (rows,):
        raise TypeError(f"{who} gave rewards of shape {list(rewards.shape)}; it is to be [{rows}]")
    for shown in observations:
        if not (
            isinstance(shown, Mapping)
            and isinstance(shown.get("role"), str)
            and isinstance(shown.get("content"), str)
        ):
            raise TypeError(f"{who} gave the observation {shown!r}; it is to be a dict of role and content")
    return result


def _length(values: Any) -> int | None:
    """None of what has no rows."""
    if type(values) is list:
        return len(values)
    if isinstance(values, torch.Tensor):
        return values.numel() if values.dim() == 1 else None
    return len(values) if isinstance(values, Sequence) and not isinstance(values, str) else None


def _as_shown(message_log: LLMMessageLogType) -> LLMMessageLogType:
    """What an environment sees of a conversation."""
    return [{"role": message["role"], "content": message["content"]} for message in message_log]


def _in_row_order(
    rows_of: list[list[int]], returns: Sequence[EnvironmentReturn[Any]]
) -> EnvironmentReturn[Any]:
    """One return of those of several tasks."""
    order = [row for rows in rows_of for row in rows]
    place = sorted(range(len(order)), key=order.__getitem__)

    def joined(field: str) -> list[Any]:
        values = [value for one in returns for value in getattr(one, field)]
        return [values[position] for position in place]

    if any(isinstance(one.rewards, Mapping) for one in returns):
        if not all(isinstance(one.rewards, Mapping) for one in returns):
            raise AssertionError(
                "some environments give rewards by name and some a tensor; one batch has one kind"
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
