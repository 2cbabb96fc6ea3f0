"""A buffer of groups in memory, between the tasks that generate groups and the trainer.

Invariant: a reserved slot is committed or removed. A trainer takes whole groups, each of them once.
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
        """Groups that began more than this many weight versions ago are discarded; None: never."""
        self.stale_groups = 0
        """Groups discarded so far."""
        self._ids = count()
        self._reserved: set[int] = set()
        self._committed: deque[PromptGroupRecord] = deque()
        self._arrived = asyncio.Condition()

    @property
    def reserved(self) -> int:
        """Number of slots that are neither committed nor removed."""
        return len(self._reserved)

    def __len__(self) -> int:
        """Number of groups that can be taken."""
        return len(self._committed)

    def reserve(self, weight_version: int, target_step: int | None = None) -> int:
        group_id = next(self._ids)
        self._reserved.add(group_id)
        return group_id

    async def commit(
        self, group_id: int, record: PromptGroupRecord, start_weight_version: int, end_weight_version: int
    ) -> None:
        if group_id not in self._reserved:
            raise KeyError(
                f"group {group_id} is not reserved: it was already committed or removed; reserve a new id"
            )
        record.weight_versions = (start_weight_version, end_weight_version)
        async with self._arrived:
            self._reserved.remove(group_id)
            self._committed.append(record)
            self._arrived.notify_all()

    async def remove_group(self, group_id: int) -> None:
        self._reserved.discard(group_id)

    async def take(self, groups: int, weight_version: int | None = None) -> list[PromptGroupRecord]:
        """Wait for this many groups and return them, oldest first. Groups too old for `weight_version` are
        discarded."""
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
