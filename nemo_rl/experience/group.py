"""Plays the members of a group concurrently, and decides what a failed member means for the group.

Both paths, through Gym and native, use it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nemo_rl.experience.failures import (
    TERMINAL,
    FailureClass,
    RolloutDataFailure,
    classify_rollout_failure,
)
from nemo_rl.experience.interfaces import Completion
from nemo_rl.experience.message_log import copied

if TYPE_CHECKING:
    from nemo_rl.data.interfaces import LLMMessageLogType
    from nemo_rl.experience.interfaces import GroupIntegrity
    from nemo_rl.experience.retry_budgets import RolloutRetryPolicy

logger = logging.getLogger(__name__)

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True)
class Played(Generic[T]):
    """The results and failures of the members, by generation index."""

    results: dict[int, T]
    failures: dict[int, Exception]


@dataclass
class Group:
    """The group being played: data that the published method signatures have no argument for."""

    prompt_idx: int | None = None
    """None if the rows do not belong to a prompt."""
    failures: dict[int, Exception] = field(default_factory=dict)
    """Failures of members, by generation index."""

    def __str__(self) -> str:
        return f"prompt_idx={self.prompt_idx}"


_CURRENT: ContextVar[Group | None] = ContextVar("group", default=None)


@contextmanager
def playing(prompt_idx: int) -> Iterator[Group]:
    """Make a new group the current one."""
    group = Group(prompt_idx)
    token = _CURRENT.set(group)
    try:
        yield group
    finally:
        _CURRENT.reset(token)


def current_group() -> Group:
    """The group that the running code belongs to."""
    return _CURRENT.get() or Group()


async def all_or_nothing(plays: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in order. If one fails, the others are cancelled and awaited, then its error is raised."""
    tasks = [asyncio.create_task(play) for play in plays]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            if not task.cancelling():  # a second cancellation would interrupt the cleanup of the task
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def play_members(
    play: Callable[[int], Awaitable[T]],
    count: int,
    integrity: GroupIntegrity,
    retry_policy: RolloutRetryPolicy,
    *,
    sleep: Sleep = asyncio.sleep,
) -> Played[T]:
    """Play members 0 … count−1 under the rules of `integrity`; raises if the group fails."""

    async def play_with_retries(index: int) -> T:
        for failures in range(1, integrity.member_attempts):
            try:
                return await play(index)
            except TERMINAL:
                raise
            except Exception as error:  # the boundary of an attempt: infrastructure failures are retried
                if classify_rollout_failure(error) is not FailureClass.INFRA:
                    raise
                logger.warning(
                    "%s traj_idx=%s failed, retrying: %s", current_group(), index, described(error)
                )
            await sleep(retry_policy.backoff_s(failures))
        return await play(index)

    async def result_or_failure(index: int) -> T | Exception:
        try:
            return await play_with_retries(index)
        except TERMINAL:
            raise
        except Exception as error:  # the boundary of a member: its failure becomes part of the group
            logger.warning("%s traj_idx=%s failed: %s", current_group(), index, described(error))
            return error

    if integrity.on_member_failure == "drop":
        results = await all_or_nothing([play_with_retries(index) for index in range(count)])
        return Played(dict(enumerate(results)), {})
    results_or_failures = await all_or_nothing([result_or_failure(index) for index in range(count)])
    played: Played[T] = Played({}, {})
    for index, result in enumerate(results_or_failures):
        if isinstance(result, Exception):
            played.failures[index] = result
        else:
            played.results[index] = result
    if played.failures and len(played.results) < min(integrity.min_members, count):
        raise next(iter(played.failures.values()))
    current_group().failures.update(played.failures)
    return played


def members_of(
    completions: dict[int, Completion],
    failures: dict[int, Exception],
    prompt: LLMMessageLogType,
    integrity: GroupIntegrity,
) -> list[Completion]:
    """The members that succeeded, and placeholders for failed members if these are masked."""
    members = dict(completions)
    if integrity.on_member_failure == "mask":
        for index, failure in failures.items():
            text = described(failure)
            members[index] = Completion(
                copied(prompt), None, False, 0.0, generation_index=index, failure=text
            )
    return [members[index] for index in sorted(members)]


def finite_reward(reward: float, rollout_label: str = "") -> float:
    """The reward of an environment; one that is NaN or infinite is a failure of the rollout."""
    if not math.isfinite(reward):
        where = f"{rollout_label}: " if rollout_label else ""
        raise RolloutDataFailure(
            f"{where}the environment returned the reward {reward}; it must be a finite number"
        )
    return reward


def described(failure: BaseException) -> str:
    """A failure as text, for records and log lines."""
    return f"{type(failure).__name__}: {failure}"
