"""A buffer of groups in memory, between those who generate and one who trains.

Invariant: a slot is reserved, then committed or removed; what a trainer takes is whole and taken once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count

from nemo_rl.experience.interfaces import PromptGroupRecord


class PromptGroupBuffer:
    """`reserve`, `commit`, `remove_group` for `generate_and_push`; `take` for the trainer."""

    def __init__(self, max_weight_lag: int | None = None) -> None:
        self.max_weight_lag = max_weight_lag
        """Groups that began so many weight versions before the trainer's are thrown away; None: never."""
        self.stale_groups = 0
        self._ids = count()
        self._reserved: set[int] = set()
        self._committed: deque[PromptGroupRecord] = deque()
        self._arrived = asyncio.Condition()

    @property
    def reserved(self) -> int:
        """Slots that are neither filled nor given back."""
        return len(self._reserved)

    def __len__(self) -> int:
        """Groups that can be taken."""
        return len(self._committed)

    def reserve(self, weight_version: int, target_step: int | None = None) -> int:
        group_id = next(self._ids)
        self._reserved.add(group_id)
        return group_id

    async def commit(
        self, group_id: int, record: PromptGroupRecord, start_weight_version: int, end_weight_version: int
    ) -> None:
        if group_id not in self._reserved:
            raise KeyError(f"group {group_id} is not reserved: it was committed or removed before")
        record.weight_versions = (start_weight_version, end_weight_version)
        async with self._arrived:
            self._reserved.remove(group_id)
            self._committed.append(record)
            self._arrived.notify_all()

    async def remove_group(self, group_id: int) -> None:
        self._reserved.discard(group_id)

    async def take(self, groups: int, weight_version: int | None = None) -> list[PromptGroupRecord]:
        """Wait for so many groups, oldest first; those too old for this weight version are thrown away."""
        async with self._arrived:
            while True:
                self._drop_stale(weight_version)
                if len(self._committed) >= groups:
                    return [self._committed.popleft() for _ in range(groups)]
                await self._arrived.wait()

    def _drop_stale(self, weight_version: int | None) -> None:
        if weight_version is None or self.max_weight_lag is None:
            return
        oldest = weight_version - self.max_weight_lag
        fresh = [group for group in self._committed if (group.weight_versions or (oldest,))[0] >= oldest]
        self.stale_groups += len(self._committed) - len(fresh)
        self._committed = deque(fresh)
