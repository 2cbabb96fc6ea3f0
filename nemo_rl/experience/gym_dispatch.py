"""Rows to the Gym handle and their results back, whichever form the handle has.

Invariant: every row has one result, put where its number says; what comes beyond that is refused, what is
missing is asked for again or told.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from nemo_rl.experience.failures import TERMINAL, FailureClass, GymTransportError, classify_rollout_failure
from nemo_rl.experience.group import Sleep, current_group, described
from nemo_rl.experience.retry import RolloutRetryPolicy, RolloutStats

logger = logging.getLogger(__name__)

Row = dict[str, Any]
Timing = Mapping[str, float]
ROWIDX = "_rowidx"
_WORK = "postprocess_results"


@dataclass
class Delivered:
    """What has come so far of some rows."""

    results: dict[int, Any] = field(default_factory=dict)
    """By row."""
    timing: dict[str, float] = field(default_factory=dict)
    """The handle's own."""

    def place(self, rowidx: Any, result: Any, sent: Sequence[int]) -> None:
        if type(rowidx) is not int or rowidx not in sent:
            raise ValueError(f"the Gym handle gave row {rowidx!r}, which is not among rows {_listed(sent)}")
        if rowidx in self.results:
            raise ValueError(f"the Gym handle gave row {rowidx} twice")
        self.results[rowidx] = result

    def add_timing(self, spent: Timing, timer_prefix: str) -> None:
        """Dispatches one after the other take as long as all of them."""
        for key, value in spent.items():
            self.timing[key] = self.timing.get(key, 0.0) + value
        _set_share(self.timing, timer_prefix)

    def missing(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if row[ROWIDX] not in self.results]


@dataclass(frozen=True)
class RowDispatch:
    """Sends rows until each has its result."""

    handle: Any
    tokenizer: Any
    retry_policy: RolloutRetryPolicy
    attempts: int
    """Dispatches of a row, the first included."""
    stats: RolloutStats
    sleep: Sleep = asyncio.sleep

    async def play(self, rows: Sequence[Row], timer_prefix: str) -> Delivered:
        """Results of all rows; those without one after an outage or a short stream are sent again."""
        delivered, failures = Delivered(), 0
        while True:
            owed = delivered.missing(rows)
            error = await self._send(owed, timer_prefix, delivered)
            missing = delivered.missing(rows)
            if not missing:
                return delivered
            failures += 1
            if error is None:
                text = f"the Gym handle's stream ended without rows {_listed(row[ROWIDX] for row in missing)}"
                error = GymTransportError(text)
            if failures >= self.attempts:
                raise error
            logger.warning(
                "%s: %s of %s rows are sent again: %s",
                current_group(),
                len(missing),
                len(rows),
                described(error),
            )
            self.stats.gym_row_redispatches += len(missing)
            await self.sleep(self.retry_policy.backoff_s(failures))

    async def _send(self, rows: Sequence[Row], timer_prefix: str, delivered: Delivered) -> Exception | None:
        """One dispatch; gives the outage that ended it, raises anything else."""
        sent, spent = [row[ROWIDX] for row in rows], dict[str, float]()
        try:
            async with aclosing(_row_stream(self.handle, rows, self.tokenizer, timer_prefix)) as stream:
                async for rowidx, result, timing in stream:
                    delivered.place(rowidx, result, sent)
                    spent |= timing or {}
        except TERMINAL:
            raise
        except Exception as error:  # the boundary to the handle: an outage is worth another try
            if classify_rollout_failure(error) is not FailureClass.INFRA:
                raise
            return error
        finally:
            delivered.add_timing(spent, timer_prefix)
        return None


async def _row_stream(
    handle: Any, rows: Sequence[Row], tokenizer: Any, timer_prefix: str
) -> AsyncGenerator[tuple[Any, Any, Timing | None], None]:
    """`(rowidx, result, timing or None)` of a coroutine or an async generator, a Ray actor's too."""
    run = handle.run_rollouts
    answer = getattr(run, "remote", run)(list(rows), tokenizer, timer_prefix)
    if not hasattr(answer, "__aiter__"):
        given = await answer if inspect.isawaitable(answer) else answer
        if not isinstance(given, tuple) or len(given) != 2:
            raise ValueError(
                f"run_rollouts of the Gym handle gave {type(given).__name__}; as a coroutine it gives "
                "(results, timing), as an async generator (rowidx, result, timing or None)"
            )
        results, timing = given
        if len(results) > len(rows):
            raise ValueError(f"the Gym handle gave {len(results)} results for {len(rows)} rows")
        for row, result in zip(rows, results, strict=False):  # one that gives too few is told by the caller
            yield row[ROWIDX], result, timing
        return
    try:
        async for item in answer:
            rowidx, result, timing = await item if inspect.isawaitable(item) else item  # Ray gives references
            yield rowidx, result, timing
    finally:
        if hasattr(answer, "aclose"):
            await answer.aclose()


def merged_timings(timings: Sequence[Timing], timer_prefix: str) -> dict[str, float]:
    """Of calls at the same time: the longest wait, and all the work, which one event loop does."""
    merged: dict[str, float] = {}
    work = f"{timer_prefix}/{_WORK}"
    for timing in timings:
        for key, value in timing.items():
            merged[key] = merged.get(key, 0.0) + value if key == work else max(merged.get(key, value), value)
    _set_share(merged, timer_prefix)
    return merged


def _set_share(timing: dict[str, float], timer_prefix: str) -> None:
    """Of the work in all the time, where both are told."""
    work, wait, share = (f"{timer_prefix}/{name}" for name in (_WORK, "await_results", f"{_WORK}_pct"))
    if share in timing and work in timing and wait in timing:
        total_s = timing[work] + timing[wait]
        timing[share] = 100.0 * timing[work] / total_s if total_s else 0.0


def _listed(rows: Any) -> str:
    return ", ".join(map(str, rows)) or "none"
