"""Steps of environments, whatever they are: plain objects, coroutines, Ray actors.

A plain object is called in a thread, one call at a time unless told otherwise, since all trajectories share
it. Nothing is in the way of anything else: other environments, other loops, the end of the process.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nemo_rl.environments.interfaces import EnvironmentReturn
from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    import torch

    from nemo_rl.data.interfaces import LLMMessageLogType
else:
    torch = lazy("torch")


@dataclass(frozen=True, slots=True)
class _Job:
    """A call, and who waits for what it gives."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]

    def run(self) -> None:
        if self.future.cancelled():
            return
        result, error = None, None
        try:
            result = self.call(*self.arguments)
        except BaseException as raised:  # the boundary to an environment's own code: the caller gets it
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._settle, result, error)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self.future.cancelled():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


class _Threads:
    """So many calls at once. Its threads are daemons: an environment that hangs keeps no process alive."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._started = 0
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()

    async def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        if self._started < self._count:
            self._started += 1
            name = f"environment {self._name} {self._started}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        loop = asyncio.get_running_loop()
        job = _Job(call, arguments, loop, loop.create_future())
        self._jobs.put(job)
        return await job.future

    def _work(self) -> None:
        while True:
            self._jobs.get().run()


class EnvironmentDispatch:
    """The environments of a run, by task."""

    def __init__(self, task_to_env: Mapping[str, Any], concurrency: int = 1) -> None:
        if concurrency < 1:
            raise ValueError(f"env_concurrency must be 1 or more, not {concurrency}")
        self._task_to_env = task_to_env
        self._concurrency = concurrency
        self._threads: dict[int, _Threads] = {}
        """By environment: one may serve several tasks."""

    async def step(
        self, tasks: Sequence[str], message_logs: Sequence[LLMMessageLogType], metadata: Sequence[Any]
    ) -> EnvironmentReturn[Any]:
        """Step a batch; rows of one task go to its environment together, tasks at the same time."""
        rows_by_task: dict[str, list[int]] = {}
        for row, task in enumerate(tasks):
            rows_by_task.setdefault(task, []).append(row)
        for task in rows_by_task:
            self._environment(task)  # before anything is stepped
        if len(rows_by_task) == 1:
            return await self._step_task(tasks[0], message_logs, metadata)
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
        batch = [_as_shown(message_log) for message_log in message_logs]
        result: EnvironmentReturn[Any] = EnvironmentReturn(*await self._called(task, batch, list(metadata)))
        nothing: list[Any] = [None] * len(batch)
        return result._replace(
            next_stop_strings=nothing if result.next_stop_strings is None else result.next_stop_strings,
            answers=nothing if result.answers is None else result.answers,
        )

    async def _called(self, task: str, batch: list[LLMMessageLogType], metadata: list[Any]) -> Any:
        environment = self._environment(task)
        step = environment.step
        if hasattr(step, "remote"):  # a Ray actor; what it gives can be awaited
            return await step.remote(batch, metadata)
        if inspect.iscoroutinefunction(step):
            return await step(batch, metadata)
        threads = self._threads.get(id(environment))
        if threads is None:
            threads = self._threads[id(environment)] = _Threads(self._concurrency, task)
        result = await threads.run(step, batch, metadata)
        return await result if inspect.isawaitable(result) else result


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
        rewards = torch.cat([one.rewards for one in returns])[place]  # type: ignore[misc]
    return EnvironmentReturn(
        observations=joined("observations"),
        metadata=joined("metadata"),
        next_stop_strings=joined("next_stop_strings"),
        rewards=rewards,
        terminateds=torch.cat([one.terminateds for one in returns])[place],
        answers=joined("answers"),
    )
