"""The order in which a pool hands out rollouts: suspects last, fewer and fewer at a time, finally alone.

A rollout is a suspect once a worker has died while it played it. Others that the worker played are suspects,
too, so the number of rollouts played together shrinks with each death, and only one that was alone is blamed.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice

from nemo_gym.records import Key
from nemo_gym.rollout_collection.outcome import PlannedRollout


class WorkQueue:
    """The rollouts that no worker plays.

    The degree of a rollout is 0 at first and rises with each death of a worker that played it. Workers play
    rollouts of one degree at a time. With `deaths_per_rollout` 3 the degrees are 0, 1 and 2 (alone).
    """

    def __init__(self, rollouts: Iterator[PlannedRollout], deaths_per_rollout: int) -> None:
        self._plan = rollouts
        self._alone = max(1, deaths_per_rollout - 1)
        self._suspects: list[deque[PlannedRollout]] = [deque() for _ in range(self._alone + 1)]
        """By degree. Those of degree 0 were played by a worker that ended because of another rollout."""
        self._degrees: dict[Key, int] = {}
        self._deaths: dict[Key, int] = {}
        self._is_plan_over = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left; known when `next_for` has returned nothing to a worker without work."""
        return self._is_plan_over and not any(self._suspects)

    def next_for(self, playing: Mapping[Key, PlannedRollout], share: int) -> list[PlannedRollout]:
        """The rollouts that a worker with this share gets in addition to those that it plays."""
        first = next(iter(playing.values()), None)
        degrees = range(self._alone + 1) if first is None else [self.degree(first)]
        for degree in degrees:
            rollouts = self._take(degree, self._company(degree, share) - len(playing))
            if rollouts:
                return rollouts
        return []

    def degree(self, rollout: PlannedRollout) -> int:
        return self._degrees.get(rollout.key, min(rollout.worker_deaths, self._alone))

    def deaths(self, rollout: PlannedRollout) -> int:
        """Workers that died in this run while they played the rollout."""
        return self._deaths.get(rollout.key, 0)

    def put_back(self, rollout: PlannedRollout) -> bool:
        """Take back a rollout whose worker died; returns False if it was alone and is not played again."""
        self._deaths[rollout.key] = self.deaths(rollout) + 1
        degree = self.degree(rollout)
        if degree == self._alone:
            return False
        self._suspect(rollout, degree + 1)
        return True

    def put_back_unharmed(self, rollout: PlannedRollout) -> None:
        """Take back a rollout whose worker ended because of another one."""
        self._suspects[self.degree(rollout)].append(rollout)

    def postpone(self, number: int) -> None:
        """Treat the next rollouts of the plan as suspects, because those before them killed workers."""
        for rollout in self._take(0, number):
            self._suspect(rollout, 1)

    def interrupted(self) -> list[PlannedRollout]:
        """The rollouts that have been started and put back."""
        died = [rollout for queue in self._suspects for rollout in queue if self.deaths(rollout)]
        return [*self._suspects[0], *died]

    def _company(self, degree: int, share: int) -> int:
        """How many rollouts of a degree a worker plays at once: 144, 12, 1 with a share of 144.

        If one of n rollouts is bad, groups of √n find it with the fewest workers.
        """
        return max(1, round(math.pow(share, 1 - degree / self._alone)))

    def _take(self, degree: int, number: int) -> list[PlannedRollout]:
        queue = self._suspects[degree]
        taken = [queue.popleft() for _ in range(min(number, len(queue)))]
        if degree == 0:
            taken += islice(self._healthy(), max(0, number - len(taken)))
        return taken

    def _healthy(self) -> Iterator[PlannedRollout]:
        """The rollouts of the plan; those that were suspects in an earlier run go to the other suspects."""
        for rollout in self._plan:
            if self.degree(rollout) == 0:
                yield rollout
            else:
                self._suspects[self.degree(rollout)].append(rollout)
        self._is_plan_over = True

    def _suspect(self, rollout: PlannedRollout, degree: int) -> None:
        self._degrees[rollout.key] = degree
        self._suspects[degree].append(rollout)
