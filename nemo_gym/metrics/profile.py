"""The profile of each task's rewards: rows and results, joined by key.

A row is known by its place and the key it asks for, a result by its key and its numbers; neither is held.
Invariant: what is profiled has a row, stands there once, and is by the one agent of its task.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.errors import InputError
from nemo_gym.metrics.columns import Columns
from nemo_gym.metrics.intake import Intake
from nemo_gym.metrics.lazy_numpy import np
from nemo_gym.metrics.statistics import Places, as_floats
from nemo_gym.records import Key, Record, agent_of, key_of, packed, unpacked
from nemo_gym.terminal import counted
from nemo_gym.types import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]

MOST_NAMED = 10
"""Keys that an error names."""

_ID = "rollout_id"
_REWARD = "reward"
_INFOS = "rollout_infos"
_BLOCK = 4096
"""Rollouts whose numbers are Python objects at one time, where a task has no more."""
_A_TASK = packed(Key(1, 0))
"""How far apart the packed keys of two tasks are."""
_NOBODY = 0
"""The number of the agent that has no name."""


class RewardProfileConfig(BaseNeMoGymCLIConfig):
    materialized_inputs_jsonl_fpath: str
    """The rows as they were sent, with their keys: `<stem>_materialized_inputs.jsonl` beside the output of
    ng_collect_rollouts."""
    rollouts_jsonl_fpath: str
    """The rollouts: the output of ng_collect_rollouts. The profile goes beside it, to
    `<stem>_reward_profiling.jsonl` and `<stem>_agent_metrics.json`."""
    allow_partial_rollouts: bool = False
    """Profile what is there though rows have no rollout yet. Else that is an error, so that no task is judged
    by fewer rollouts than were asked for without anybody noticing."""


class RewardProfiler:
    """Profiles rows and results that are in memory."""

    def profile_from_data(
        self,
        rows: Sequence[Record],
        results: Sequence[Record],
        allow_partial_rollouts: bool = False,
    ) -> tuple[list[Record], list[Record]]:
        """What each task's rollouts came to, and what each agent's did.

        Tasks are in the order of their indices, agents in that of their first rows. A task is the agent's
        that its rows name, else its results; where nobody names one, `agent_ref` is empty.
        """
        join = _joined(rows, results)
        _refuse_unjoined(join, allow_partial_rollouts)
        intakes: defaultdict[str, Intake] = defaultdict(lambda: Intake(Columns()))
        for result in results:
            key = key_of(result)
            assert key is not None, "it was joined by it"
            intakes[join.agent(key.task)].take(*key, result)
        columns = {agent: intake.columns for agent, intake in intakes.items()}
        profile = Profile(join, columns, rows.__getitem__)
        return list(profile.groups()), profile.agents()


def profile_completion_summary(rows: Sequence[Record], results: Sequence[Record]) -> dict[str, int]:
    """How much of what the rows ask for the results are; a key that stands twice counts once."""
    return _joined(rows, results).summary()


class Rows:
    """What was asked for: the key of each row and the agent that it names, in 12 bytes."""

    def __init__(self) -> None:
        self.keys = array("q")
        self.agents = array("i")
        self.numbers = {"": _NOBODY}
        """Of the agents' names."""

    def add(self, key: Key, agent: str) -> None:
        self.keys.append(packed(key))
        self.agents.append(self.numbers.setdefault(agent, len(self.numbers)))


class Wanted(NamedTuple):
    """What was asked for of one task."""

    rollouts: int
    place: int
    """Of the row of its first rollout."""


class Repeat(NamedTuple):
    """A row with the key of an earlier one."""

    place: int
    first: int
    """Where the earlier one stands."""


class Join:
    """Rows and results, put together by key. Of a key that stands twice the first is taken."""

    def __init__(self, rows: Rows, results: "Mapping[str, Places]") -> None:
        """`results` are the packed keys of each agent's, under "" those of results that name none."""
        self._asked = np.array(rows.keys, np.int64)
        self._wanted, self._places = np.unique(self._asked, return_index=True)
        self._tasks, self._firsts, self._sizes = np.unique(
            self._wanted // _A_TASK, return_index=True, return_counts=True
        )
        numbers = {name: len(rows.numbers) + at for at, name in enumerate(results)} | rows.numbers
        self._names = {number: name for name, number in numbers.items()}
        self._results = {numbers[name]: keys for name, keys in results.items()}
        self._had = np.sort(_chained(results.values()))
        self._agents = self._first_named(self._wanted, np.array(rows.agents, np.int64)[self._places])
        if (self._agents == _NOBODY).any():
            by = [np.full(len(keys), number) for number, keys in self._results.items()]
            named = self._first_named(_chained(self._results.values()), _chained(by))
            self._agents = np.where(self._agents == _NOBODY, named, self._agents)

    def _first_named(self, keys: Places, agents: Places) -> Places:
        """The agent of each task: the first that is named, in the order of the keys."""
        is_named = (agents != _NOBODY) & _are_among(keys // _A_TASK, self._tasks)
        keys, agents = keys[is_named], agents[is_named]
        order = np.argsort(keys, kind="stable")
        tasks, firsts = np.unique(keys[order] // _A_TASK, return_index=True)
        found = np.full(len(self._tasks), _NOBODY, np.int64)
        found[np.searchsorted(self._tasks, tasks)] = agents[order][firsts]
        return found

    def repeats(self) -> list[Repeat]:
        """The rows whose key stands at an earlier place."""
        if len(self._wanted) == len(self._asked):
            return []
        places = np.delete(np.arange(len(self._asked)), self._places)
        firsts = self._places[np.searchsorted(self._wanted, self._asked[places])]
        return [Repeat(*pair) for pair in zip(places.tolist(), firsts.tolist(), strict=True)]

    def repeated_rows(self) -> Places:
        """The keys of more than one row, as all that follow: packed and in order."""
        return _repeated(np.sort(self._asked))

    def repeated_results(self) -> Places:
        return _repeated(self._had)

    def without_row(self) -> Places:
        """The keys of results that nobody asked for."""
        return np.unique(self._had[~_are_among(self._had, self._wanted)])

    def without_result(self) -> Places:
        """The keys of rows that have no result."""
        return self._wanted[~_are_among(self._wanted, self._had)]

    def of_other_agents(self) -> Places:
        """The keys of results that name another agent than that of their task."""
        odd = []
        for number, keys in self._results.items():
            if number != _NOBODY:
                known = keys[_are_among(keys, self._wanted)]
                odd.append(known[self._agents[np.searchsorted(self._tasks, known // _A_TASK)] != number])
        return np.sort(_chained(odd))

    def agent(self, task: int) -> str:
        """Whose the task is; "" where nobody says."""
        return self._names[int(self._agents[self._at(task)])]

    def agents(self) -> list[str]:
        """All of them, in the order of their first rows."""
        firsts = np.minimum.reduceat(self._places, self._firsts) if len(self._tasks) else self._firsts
        numbers = dict.fromkeys(self._agents[np.argsort(firsts)].tolist())
        return [self._names[number] for number in numbers]

    def wanted(self, task: int) -> Wanted:
        at = self._at(task)
        return Wanted(int(self._sizes[at]), int(self._places[self._firsts[at]]))

    def _at(self, task: int) -> int:
        return int(self._tasks.searchsorted(task))

    def summary(self) -> dict[str, int]:
        """Counts of rollouts and of tasks."""
        is_done = _are_among(self._wanted, self._had).astype(np.int64)
        done = np.add.reduceat(is_done, self._firsts) if len(self._tasks) else self._firsts
        complete, missing = int((done == self._sizes).sum()), int((done == 0).sum())
        return {
            "expected_rollouts": len(is_done),
            "completed_rollouts": int(is_done.sum()),
            "missing_rollouts": len(is_done) - int(is_done.sum()),
            "extra_rollouts": len(self.without_row()),
            "expected_tasks": len(self._tasks),
            "complete_tasks": complete,
            "partial_tasks": len(self._tasks) - complete - missing,
            "missing_tasks": missing,
        }


class Profile:
    """What the rollouts came to, told when it is asked for."""

    def __init__(self, join: Join, columns: Mapping[str, Columns], row: Callable[[int], Record]) -> None:
        """`columns` by agent; `row` gives the row at a place."""
        self._join = join
        self.columns = {agent: columns[agent] for agent in join.agents() if agent in columns}
        """In the order of the agents' first rows."""
        self._row = row

    def groups(self) -> Iterator[Record]:
        """A dict a task that has a result, in the order of their indices."""
        by_agent = [_groups(columns) for columns in self.columns.values()]
        for group in merge(*by_agent, key=itemgetter(TASK_INDEX_KEY_NAME)):
            yield self._completed(group)

    def _completed(self, group: Record) -> Record:
        wanted, infos = self._join.wanted(group[TASK_INDEX_KEY_NAME]), group.pop(_INFOS)
        return group | {
            "sample": _without_keys(self._row(wanted.place)),
            "num_rollouts": len(infos),
            "expected_num_rollouts": wanted.rollouts,
            "missing_num_rollouts": wanted.rollouts - len(infos),
            "reward_profile_completion_pct": 100 * len(infos) / wanted.rollouts,
            _INFOS: infos,
        }

    def agents(self) -> list[Record]:
        """A dict an agent that has a result."""
        return [
            {AGENT_REF_KEY_NAME: {"name": agent} if agent else {}, **columns.metrics()}
            for agent, columns in self.columns.items()
        ]


@dataclass
class Difficulty:
    """How many tasks are solved how reliably."""

    never_solved: int = 0
    """No rollout has a reward above 0."""
    sometimes_solved: int = 0
    """All between: what there is something to learn from."""
    always_solved: int = 0
    """Every rollout has a reward of 1, or more."""
    without_reward: int = 0
    """No rollout has a finite reward."""

    def take(self, group: Record) -> None:
        if f"max/{_REWARD}" not in group:
            self.without_reward += 1
        elif group[f"max/{_REWARD}"] <= 0:
            self.never_solved += 1
        elif group[f"min/{_REWARD}"] >= 1:
            self.always_solved += 1
        else:
            self.sometimes_solved += 1

    def counts(self) -> dict[str, int]:
        return asdict(self)

    @property
    def tasks(self) -> int:
        return sum(self.counts().values())


def keys_of(columns: Columns) -> Places:
    """The packed keys of rollouts, in the order they were added."""
    return np.array(columns.tasks, np.int64) * _A_TASK + np.array(columns.rollouts, np.int64)


def names_of(keys: Places) -> str:
    """The first of some packed keys, for people."""
    names = ", ".join(str(unpacked(key)) for key in keys[:MOST_NAMED].tolist())
    return names if len(keys) <= MOST_NAMED else f"{names} and {len(keys) - MOST_NAMED} more"


def _groups(columns: Columns) -> Iterator[Record]:
    """The statistics of each task with the numbers of its rollouts."""
    infos = groupby(_infos(columns), itemgetter(TASK_INDEX_KEY_NAME))
    for group, (_, members) in zip(columns.groups(), infos, strict=True):
        yield group | {_INFOS: list(members)}


def _infos(columns: Columns) -> Iterator[Record]:
    """The numbers of each rollout, in the order of their keys; a field named like its id is hidden by it."""
    keys = keys_of(columns)
    order = np.argsort(keys)
    names = sorted((name for name in columns.names if name != _ID), key=lambda name: name != _REWARD)
    labels = [_ID, TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, *names]
    fields = [as_floats(columns.values(name)) for name in names]
    for start in range(0, len(order), _BLOCK):
        places = order[start : start + _BLOCK]
        values = np.array([field[places] for field in fields]).T.reshape(len(places), len(fields))
        is_whole = not np.isnan(values).any()
        for name, numbers in zip(keys[places].tolist(), values.tolist(), strict=True):
            key = unpacked(name)
            info = dict(zip(labels, (str(key), *key, *numbers), strict=True))
            yield info if is_whole else {label: value for label, value in info.items() if value == value}


def _without_keys(row: Record) -> Record:
    return {
        name: value
        for name, value in row.items()
        if name not in (TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME)
    }


def _joined(rows: Sequence[Record], results: Sequence[Record]) -> Join:
    asked, done = Rows(), defaultdict[str, "array[int]"](lambda: array("q"))
    for place, row in enumerate(rows):
        asked.add(_key(row, "row", place), agent_of(row))
    for place, result in enumerate(results):
        done[agent_of(result)].append(packed(_key(result, "result", place)))
    return Join(asked, {agent: np.array(keys, np.int64) for agent, keys in done.items()})


def _key(record: Record, kind: str, place: int) -> Key:
    key = key_of(record)
    if key is None:
        raise InputError(
            f"{kind} {place} (from 0) has no key: {TASK_INDEX_KEY_NAME} and {ROLLOUT_INDEX_KEY_NAME} must be "
            f"whole numbers from 0; got {_shown(record, TASK_INDEX_KEY_NAME)} and "
            f"{_shown(record, ROLLOUT_INDEX_KEY_NAME)}"
        )
    return key


def _shown(record: Record, name: str) -> str:
    return repr(record[name]) if name in record else "none"


def _refuse_unjoined(join: Join, allow_partial: bool) -> None:
    _refuse(join.repeated_rows(), "with more than one row", "keep one row for each")
    _refuse(join.repeated_results(), "with more than one result", "keep one result for each")
    _refuse(join.without_row(), "with a result and no row", "give the rows that the results were made from")
    _refuse(join.of_other_agents(), "by another agent than their task's", "give a task's rollouts one agent")
    if not allow_partial:
        advice = "collect them, or pass allow_partial_rollouts=True"
        _refuse(join.without_result(), "with a row and no result", advice)


def _refuse(keys: Places, what: str, advice: str) -> None:
    if len(keys):
        raise InputError(f"{counted(len(keys), 'rollout')} {what}: {names_of(keys)}; {advice}")


def _repeated(keys: Places) -> Places:
    """Those that stand more than once among sorted ones."""
    return np.unique(keys[1:][keys[1:] == keys[:-1]])


def _chained(parts: "Iterable[Places]") -> Places:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _are_among(keys: Places, others: Places) -> "Flags":
    """Whether each is among others, which are sorted."""
    if not len(others):
        return np.zeros(len(keys), np.bool_)
    at = np.minimum(np.searchsorted(others, keys), len(others) - 1)
    are_among: Flags = others[at] == keys
    return are_among
