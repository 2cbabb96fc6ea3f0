"""The members of a group, played at the same time: what one's failure means for the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nemo_rl.experience.failures import TERMINAL, FailureClass, classify_rollout_failure

if TYPE_CHECKING:
    from nemo_rl.experience.interfaces import GroupIntegrity
    from nemo_rl.experience.retry import RolloutRetryPolicy

logger = logging.getLogger(__name__)

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True)
class Played(Generic[T]):
    """Who succeeded, and who did not, by generation index."""

    results: dict[int, T]
    failures: dict[int, Exception]


@dataclass
class Group:
    """One that is being played; what is known of it and is no argument of published methods."""

    prompt_idx: int | None = None
    """None where rows are played that are no prompt's."""
    failures: dict[int, Exception] = field(default_factory=dict)
    """Of members, by generation index."""

    def __str__(self) -> str:
        return f"prompt_idx={self.prompt_idx}"


_CURRENT: ContextVar[Group | None] = ContextVar("group", default=None)


@contextmanager
def playing(prompt_idx: int) -> Iterator[Group]:
    """The group that is played within this."""
    group = Group(prompt_idx)
    token = _CURRENT.set(group)
    try:
        yield group
    finally:
        _CURRENT.reset(token)


def current_group() -> Group:
    """The one that the running code plays a part of."""
    return _CURRENT.get() or Group()


async def all_or_nothing(plays: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """In order; when one fails, the others are cancelled and awaited before it is told."""
    tasks = [asyncio.create_task(play) for play in plays]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            if not task.cancelling():  # as all are where the group is: twice would break their cleaning up
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
    """Play members 0 … count−1 under these rules; raises where the group is not to be."""

    async def member(index: int) -> T:
        for failures in range(1, integrity.member_attempts):
            try:
                return await play(index)
            except TERMINAL:
                raise
            except Exception as error:  # the boundary of a try: what may be tried again is, all else goes up
                if classify_rollout_failure(error) is not FailureClass.INFRA:
                    raise
                logger.warning("%s traj_idx=%s is tried again: %s", current_group(), index, described(error))
            await sleep(retry_policy.backoff_s(failures))
        return await play(index)

    async def outcome(index: int) -> T | Exception:
        try:
            return await member(index)
        except TERMINAL:
            raise
        except Exception as error:  # the boundary of a member: a failed one is data
            logger.warning("%s traj_idx=%s failed: %s", current_group(), index, described(error))
            return error

    if integrity.on_member_failure == "drop":
        results = await all_or_nothing([member(index) for index in range(count)])
        return Played(dict(enumerate(results)), {})
    outcomes = await all_or_nothing([outcome(index) for index in range(count)])
    played: Played[T] = Played({}, {})
    for index, result in enumerate(outcomes):
        if isinstance(result, Exception):
            played.failures[index] = result
        else:
            played.results[index] = result
    if played.failures and len(played.results) < min(integrity.min_members, count):
        raise next(iter(played.failures.values()))
    current_group().failures.update(played.failures)
    return played


def described(failure: BaseException) -> str:
    """A failure in a record."""
    return f"{type(failure).__name__}: {failure}"
