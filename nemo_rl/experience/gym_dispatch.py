"""Sends rows to the Gym handle and receives their results. The handle may be any of the supported forms.

Invariant: every row gets one result, matched by row index. An unexpected or repeated result is an error; rows
without a result are sent again, or reported in an error.
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
from nemo_rl.experience.retry_budgets import RolloutRetryPolicy, RolloutStats

logger = logging.getLogger(__name__)

Row = dict[str, Any]
Timing = Mapping[str, float]
ROWIDX = "_rowidx"
TASK_NAME = "nemo_gym"
HANDLE = f"task_to_env[{TASK_NAME!r}]"
"""The Gym handle, as the user passed it."""
_WORK = "postprocess_results"


@dataclass
class Delivered:
    """The results received so far."""

    results: dict[int, Any] = field(default_factory=dict)
    """By row index."""
    timing: dict[str, float] = field(default_factory=dict)
    """Times that the handle measured."""

    def add_result(self, rowidx: Any, result: Any, sent: Sequence[int]) -> None:
        if type(rowidx) is not int or rowidx not in sent:
            raise ValueError(f"{HANDLE} returned row {rowidx!r}; expected one of rows {_listed(sent)}")
        if rowidx in self.results:
            raise ValueError(f"{HANDLE} returned row {rowidx} twice")
        self.results[rowidx] = result

    def add_timing(self, timing: Timing, timer_prefix: str) -> None:
        """Add the times of one dispatch. Dispatches do not overlap, so their times are summed."""
        for key, value in timing.items():
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
    """Times a row is sent, the first included."""
    stats: RolloutStats
    sleep: Sleep = asyncio.sleep

    async def play(self, rows: Sequence[Row], timer_prefix: str) -> Delivered:
        """The results of all rows. Rows without a result after an outage or a short stream are sent again."""
        delivered, failures = Delivered(), 0
        while True:
            error = await self._send(delivered.missing(rows), timer_prefix, delivered)
            missing = delivered.missing(rows)
            if not missing:
                return delivered
            failures += 1
            if error is None:
                absent = _listed(row[ROWIDX] for row in missing)
                error = GymTransportError(f"{HANDLE} returned no result for rows {absent}")
            if failures >= self.attempts:
                raise error
            logger.warning(
                "%s: sending %s of %s rows again: %s",
                current_group(),
                len(missing),
                len(rows),
                described(error),
            )
            self.stats.gym_row_redispatches += len(missing)
            await self.sleep(self.retry_policy.backoff_s(failures))

    async def _send(self, rows: Sequence[Row], timer_prefix: str, delivered: Delivered) -> Exception | None:
        """Send rows once. Returns the outage that ended the dispatch, if one did; raises any other error."""
        sent, dispatch_timing = [row[ROWIDX] for row in rows], dict[str, float]()
        try:
            async with aclosing(_row_stream(self.handle, rows, self.tokenizer, timer_prefix)) as stream:
                async for rowidx, result, timing in stream:
                    delivered.add_result(rowidx, result, sent)
                    dispatch_timing |= timing or {}
        except TERMINAL:
            raise
        except Exception as error:  # the boundary to the handle: an outage is retried
            if classify_rollout_failure(error) is not FailureClass.INFRA:
                raise
            return error
        finally:
            delivered.add_timing(dispatch_timing, timer_prefix)
        return None


async def _row_stream(
    handle: Any, rows: Sequence[Row], tokenizer: Any, timer_prefix: str
) -> AsyncGenerator[tuple[Any, Any, Timing | None], None]:
    """`(rowidx, result, timing or None)` from a coroutine or an async generator, also of a Ray actor."""
    run = handle.run_rollouts
    stream = getattr(run, "remote", run)(list(rows), tokenizer, timer_prefix)
    if not hasattr(stream, "__aiter__"):
        returned = await stream if inspect.isawaitable(stream) else stream
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise ValueError(
                f"run_rollouts of {HANDLE} returned {type(returned).__name__}; a coroutine must return "
                "(results, timing), an async generator must yield (rowidx, result, timing or None)"
            )
        results, timing = returned
        if len(results) > len(rows):
            raise ValueError(f"{HANDLE} returned {len(results)} results for {len(rows)} rows")
        for row, result in zip(rows, results, strict=False):  # the caller detects missing results
            yield row[ROWIDX], result, timing
        return
    try:
        async for item in stream:
            rowidx, result, timing = (
                await item if inspect.isawaitable(item) else item
            )  # Ray yields references
            yield rowidx, result, timing
    finally:
        if hasattr(stream, "aclose"):
            await stream.aclose()


def merged_timings(timings: Sequence[Timing], timer_prefix: str) -> dict[str, float]:
    """The timing of concurrent dispatches: the longest wait, because waits overlap, and all processing."""
    merged: dict[str, float] = {}
    work = f"{timer_prefix}/{_WORK}"
    for timing in timings:
        for key, value in timing.items():
            merged[key] = merged.get(key, 0.0) + value if key == work else max(merged.get(key, value), value)
    _set_share(merged, timer_prefix)
    return merged


def _set_share(timing: dict[str, float], timer_prefix: str) -> None:
    """Update the percentage of time spent on processing, if the handle reports it."""
    work, wait, share = (f"{timer_prefix}/{name}" for name in (_WORK, "await_results", f"{_WORK}_pct"))
    if share in timing and work in timing and wait in timing:
        total_s = timing[work] + timing[wait]
        timing[share] = 100.0 * timing[work] / total_s if total_s else 0.0


def _listed(rows: Any) -> str:
    return ", ".join(map(str, rows)) or "none"
