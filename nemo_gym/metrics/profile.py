"""The reward profile of each task: rows and results, joined by key.

Only the position and key of a row, and the key and numbers of a result, are kept in memory. Invariant: a
result in the profile has a row, occurs once, and was played by the agent of its task.
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
"""How many keys an error message lists."""

_ID = "rollout_id"
_REWARD = "reward"
_INFOS = "rollout_infos"
_BLOCK = 4096
"""How many rollouts are Python objects at the same time, unless a task has more."""
_TASK_STEP = packed(Key(1, 0))
"""The difference between the packed keys of a rollout of one task and of the next."""
_NO_AGENT = 0
"""The agent number of rows and results that name no agent."""


class RewardProfileConfig(BaseNeMoGymCLIConfig):
    materialized_inputs_jsonl_fpath: str
    """The rows as they were sent, with their keys: `<stem>_materialized_inputs.jsonl` beside the output of
    ng_collect_rollouts."""
    rollouts_jsonl_fpath: str
    """The rollouts: the output of ng_collect_rollouts. The profile goes beside it, to
    `<stem>_reward_profiling.jsonl` and `<stem>_agent_metrics.json`."""
    allow_partial_rollouts: bool = False
    """Profile even if some planned rollouts are missing. By default this is an error, so that no task is
    profiled silently with fewer rollouts than planned."""


class RewardProfiler:
    """Profiles rows and results that are in memory."""

    def profile_from_data(
        self,
        rows: Sequence[Record],
        results: Sequence[Record],
        allow_partial_rollouts: bool = False,
    ) -> tuple[list[Record], list[Record]]:
        """The metrics of each task and of each agent.

        Tasks are in the order of their indices, agents in the order of their first rows. The agent of a task
        is the one that its rows name, otherwise the one that its results name; if neither does, `agent_ref`
        is empty.
        """
        join = _joined(rows, results)
        _refuse_unjoined(join, allow_partial_rollouts)
        intakes: defaultdict[str, Intake] = defaultdict(lambda: Intake(Columns()))
        for result in results:
            key = key_of(result)
            assert key is not None, "checked by _joined"
            intakes[join.agent(key.task)].take(*key, result)
        columns = {agent: intake.columns for agent, intake in intakes.items()}
        profile = Profile(join, columns, rows.__getitem__)
        return list(profile.groups()), profile.agents()


def profile_completion_summary(rows: Sequence[Record], results: Sequence[Record]) -> dict[str, int]:
    """Counts of expected, completed, missing and extra rollouts, and of tasks; a repeated key counts once."""
    return _joined(rows, results).summary()


class Rows:
    """The key of each row and the agent that it names, in 12 bytes."""

    def __init__(self) -> None:
        self.keys = array("q")
        self.agents = array("i")
        self.numbers = {"": _NO_AGENT}
        """The number of each agent, by name."""

    def add(self, key: Key, agent: str) -> None:
        self.keys.append(packed(key))
        self.agents.append(self.numbers.setdefault(agent, len(self.numbers)))


class PlannedTask(NamedTuple):
    """The rows of one task."""

    rollouts: int
    place: int
    """The position of the row of its first rollout."""


class Repeat(NamedTuple):
    """A row with the key of an earlier one."""

    place: int
    first: int
    """The position of the earlier row."""


class Join:
    """Rows and results, joined by key. Of a repeated key, the first one counts."""

    def __init__(self, rows: Rows, results: "Mapping[str, Places]") -> None:
        """`results` holds the packed keys of results by agent, under "" those of results without an agent."""
        self._row_keys = np.array(rows.keys, np.int64)
        self._planned, self._places = np.unique(self._row_keys, return_index=True)
        self._tasks, self._firsts, self._sizes = np.unique(
            self._planned // _TASK_STEP, return_index=True, return_counts=True
        )
        numbers = {name: len(rows.numbers) + at for at, name in enumerate(results)} | rows.numbers
        self._names = {number: name for name, number in numbers.items()}
        self._results = {numbers[name]: keys for name, keys in results.items()}
        self._result_keys = np.sort(_chained(results.values()))
        self._agents = self._first_named(self._planned, np.array(rows.agents, np.int64)[self._places])
        if (self._agents == _NO_AGENT).any():
            by = [np.full(len(keys), number) for number, keys in self._results.items()]
            named = self._first_named(_chained(self._results.values()), _chained(by))
            self._agents = np.where(self._agents == _NO_AGENT, named, self._agents)

    def _first_named(self, keys: Places, agents: Places) -> Places:
        """The agent of each task: the first one named, in the order of the keys."""
        is_named = (agents != _NO_AGENT) & _are_among(keys // _TASK_STEP, self._tasks)
        keys, agents = keys[is_named], agents[is_named]
        order = np.argsort(keys, kind="stable")
        tasks, firsts = np.unique(keys[order] // _TASK_STEP, return_index=True)
        found = np.full(len(self._tasks), _NO_AGENT, np.int64)
        found[np.searchsorted(self._tasks, tasks)] = agents[order][firsts]
        return found

    def repeats(self) -> list[Repeat]:
        """The rows with the key of an earlier row."""
        if len(self._planned) == len(self._row_keys):
            return []
        places = np.delete(np.arange(len(self._row_keys)), self._places)
        firsts = self._places[np.searchsorted(self._planned, self._row_keys[places])]
        return [Repeat(*pair) for pair in zip(places.tolist(), firsts.tolist(), strict=True)]

    def repeated_rows(self) -> Places:
        """The keys with more than one row, packed and sorted, as in the methods below."""
        return _repeated(np.sort(self._row_keys))

    def repeated_results(self) -> Places:
        return _repeated(self._result_keys)

    def without_row(self) -> Places:
        """The keys of results that have no row."""
        return np.unique(self._result_keys[~_are_among(self._result_keys, self._planned)])

    def without_result(self) -> Places:
        """The keys of rows that have no result."""
        return self._planned[~_are_among(self._planned, self._result_keys)]

    def of_other_agents(self) -> Places:
        """The keys of results that name an agent other than their task's."""
        found = []
        for number, keys in self._results.items():
            if number != _NO_AGENT:
                known = keys[_are_among(keys, self._planned)]
                agents = self._agents[np.searchsorted(self._tasks, known // _TASK_STEP)]
                found.append(known[agents != number])
        return np.sort(_chained(found))

    def agent(self, task: int) -> str:
        """The agent of a task; "" if neither rows nor results name one."""
        return self._names[int(self._agents[self._at(task)])]

    def agents(self) -> list[str]:
        """All agents, in the order of their first rows."""
        firsts = np.minimum.reduceat(self._places, self._firsts) if len(self._tasks) else self._firsts
        numbers = dict.fromkeys(self._agents[np.argsort(firsts)].tolist())
        return [self._names[number] for number in numbers]

    def planned(self, task: int) -> PlannedTask:
        at = self._at(task)
        return PlannedTask(int(self._sizes[at]), int(self._places[self._firsts[at]]))

    def _at(self, task: int) -> int:
        return int(self._tasks.searchsorted(task))

    def summary(self) -> dict[str, int]:
        """Counts of rollouts and of tasks."""
        is_done = _are_among(self._planned, self._result_keys).astype(np.int64)
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
    """The metrics of the rollouts, computed when they are requested."""

    def __init__(self, join: Join, columns: Mapping[str, Columns], row: Callable[[int], Record]) -> None:
        """`columns` by agent; `row` returns the row at a position."""
        self._join = join
        self.columns = {agent: columns[agent] for agent in join.agents() if agent in columns}
        """In the order of the agents' first rows."""
        self._row = row

    def groups(self) -> Iterator[Record]:
        """One dict per task that has a result, in the order of the task indices."""
        by_agent = [_groups(columns) for columns in self.columns.values()]
        for group in merge(*by_agent, key=itemgetter(TASK_INDEX_KEY_NAME)):
            yield self._completed(group)

    def _completed(self, group: Record) -> Record:
        planned, infos = self._join.planned(group[TASK_INDEX_KEY_NAME]), group.pop(_INFOS)
        return group | {
            "sample": _without_keys(self._row(planned.place)),
            "num_rollouts": len(infos),
            "expected_num_rollouts": planned.rollouts,
            "missing_num_rollouts": planned.rollouts - len(infos),
            "reward_profile_completion_pct": 100 * len(infos) / planned.rollouts,
            _INFOS: infos,
        }

    def agents(self) -> list[Record]:
        """One dict per agent that has a result."""
        return [
            {AGENT_REF_KEY_NAME: {"name": agent} if agent else {}, **columns.metrics()}
            for agent, columns in self.columns.items()
        ]


@dataclass
class Difficulty:
    """The number of tasks that are solved never, sometimes or always."""

    never_solved: int = 0
    """No rollout has a reward above 0."""
    sometimes_solved: int = 0
    """All other tasks: those that a policy can learn from."""
    always_solved: int = 0
    """Every rollout has a reward of at least 1."""
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
    return np.array(columns.tasks, np.int64) * _TASK_STEP + np.array(columns.rollouts, np.int64)


def key_list(keys: Places) -> str:
    """The first packed keys as text, and how many more there are."""
    names = ", ".join(str(unpacked(key)) for key in keys[:MOST_NAMED].tolist())
    return names if len(keys) <= MOST_NAMED else f"{names} and {len(keys) - MOST_NAMED} more"


def _groups(columns: Columns) -> Iterator[Record]:
    """The statistics of each task with the numbers of its rollouts."""
    infos = groupby(_infos(columns), itemgetter(TASK_INDEX_KEY_NAME))
    for group, (_, members) in zip(columns.groups(), infos, strict=True):
        yield group | {_INFOS: list(members)}


def _infos(columns: Columns) -> Iterator[Record]:
    """The numbers of each rollout, in the order of their keys, without a field called `rollout_id`."""
    keys = keys_of(columns)
    order = np.argsort(keys)
    names = sorted((name for name in columns.names if name != _ID), key=lambda name: name != _REWARD)
    labels = [_ID, TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, *names]
    fields = [as_floats(columns.values(name)) for name in names]
    for start in range(0, len(order), _BLOCK):
        places = order[start : start + _BLOCK]
        values = np.array([field[places] for field in fields]).T.reshape(len(places), len(fields))
        is_complete = not np.isnan(values).any()
        for packed_key, numbers in zip(keys[places].tolist(), values.tolist(), strict=True):
            key = unpacked(packed_key)
            info = dict(zip(labels, (str(key), *key, *numbers), strict=True))
            yield info if is_complete else {label: value for label, value in info.items() if value == value}


def _without_keys(row: Record) -> Record:
    return {
        name: value
        for name, value in row.items()
        if name not in (TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME)
    }


def _joined(rows: Sequence[Record], results: Sequence[Record]) -> Join:
    planned, done = Rows(), defaultdict[str, "array[int]"](lambda: array("q"))
    for place, row in enumerate(rows):
        planned.add(_key(row, "row", place), agent_of(row))
    for place, result in enumerate(results):
        done[agent_of(result)].append(packed(_key(result, "result", place)))
    return Join(planned, {agent: np.array(keys, np.int64) for agent, keys in done.items()})


def _key(record: Record, kind: str, place: int) -> Key:
    key = key_of(record)
    if key is None:
        raise InputError(
            f"{kind} {place} (counted from 0) has no valid key: {TASK_INDEX_KEY_NAME} and "
            f"{ROLLOUT_INDEX_KEY_NAME} must be whole numbers of at least 0; "
            f"got {_shown(record, TASK_INDEX_KEY_NAME)} and {_shown(record, ROLLOUT_INDEX_KEY_NAME)}"
        )
    return key


def _shown(record: Record, name: str) -> str:
    return repr(record[name]) if name in record else "none"


def _refuse_unjoined(join: Join, allow_partial: bool) -> None:
    _refuse(join.repeated_rows(), "with more than one row", "keep one row for each")
    _refuse(join.repeated_results(), "with more than one result", "keep one result for each")
    _refuse(join.without_row(), "with a result but no row", "pass the rows that the results come from")
    _refuse(join.of_other_agents(), "by an agent other than their task's", "use one agent per task")
    if not allow_partial:
        advice = "collect them, or pass allow_partial_rollouts=True"
        _refuse(join.without_result(), "with a row but no result", advice)


def _refuse(keys: Places, what: str, advice: str) -> None:
    if len(keys):
        raise InputError(f"{counted(len(keys), 'rollout')} {what}: {key_list(keys)}; {advice}")


def _repeated(keys: Places) -> Places:
    """The keys that occur more than once; `keys` is sorted."""
    return np.unique(keys[1:][keys[1:] == keys[:-1]])


def _chained(parts: "Iterable[Places]") -> Places:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _are_among(keys: Places, others: Places) -> "Flags":
    """For each key, whether it is in `others`, which is sorted."""
    if not len(others):
        return np.zeros(len(keys), np.bool_)
    at = np.minimum(np.searchsorted(others, keys), len(others) - 1)
    are_among: Flags = others[at] == keys
    return are_among
