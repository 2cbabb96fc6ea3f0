"""Comparison of two runs of the same tasks: what differs, by how much, and whether chance explains it.

Invariant: a difference is B minus A over the tasks that have a value in both runs. Each task counts once,
however many rollouts it has. Only numbers and file offsets are kept in memory.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from nemo_gym.analysis.same_tasks import Rows, SameTasks, prompt_of, read_inputs, same_tasks
from nemo_gym.errors import InputError
from nemo_gym.metrics import Columns
from nemo_gym.metrics.statistics import Floats, Places, as_floats, present
from nemo_gym.metrics.uncertainty import CONFIDENCE, Difference, Range, estimate_task_mean, paired_difference
from nemo_gym.records import BadLines, Key, packed
from nemo_gym.rollout_collection.recording.rollouts import OutputIndex
from nemo_gym.rollout_collection.recording.scan import find_rollouts
from nemo_gym.setting_names import close_matches
from nemo_gym.terminal import counted, one_line

T_TEST = "paired t test over tasks"
SIGN_TEST = "sign test over tasks"
"""Used if all tasks differ by the same amount: a t test then has no standard error."""
SIGNIFICANT = 0.05
TOKENS = ("input_tokens", "output_tokens", "total_tokens")
DEFAULT_MOST_FLIPS = 20

Verdict = Literal["a_higher", "b_higher", "no_difference_shown", "unknown", "different_tasks"]

_ROUNDING = 1e-12
"""Relative difference up to which two means count as equal."""
_MOST_FIELDS = 20
_TIME = {"time", "duration", "latency", "elapsed"}
_UNITS_OF_TIME = {"s", "ms", "sec", "secs", "seconds", "minutes"}


@dataclass(frozen=True)
class Summary:
    """One field in one run."""

    mean: float
    """Mean over the paired tasks of the mean of each task."""
    ci95_low: float | None
    ci95_high: float | None
    rollouts: int
    """Rollouts of the paired tasks that have a value."""
    total: float
    """Sum over all rollouts of the agent, including those of unpaired tasks."""


@dataclass(frozen=True)
class FieldComparison:
    """One field in both runs."""

    name: str
    tasks: int
    """Tasks that have a value in both runs."""
    a: Summary
    b: Summary
    difference: float
    std_err: float | None
    ci95_low: float | None
    """Interval of the difference; None if there is one task, or if all tasks differ by the same amount."""
    ci95_high: float | None
    p_value: float | None
    """Two-sided; None if there is one task."""
    method: str | None
    """The test that gave the p-value."""
    p_value_holm: float | None = None
    """After Holm's correction for the number of fields; None for the requested metric."""


class Flip(NamedTuple):
    """A task whose mean is on one side of the midpoint in A and on the other side in B."""

    task: int
    a_mean: float
    a_rollouts: int
    b_mean: float
    b_rollouts: int
    change: float
    prompt: str
    """The start of the prompt, as one line of printable characters; empty if unknown."""


@dataclass(frozen=True)
class Flips:
    """How the task means changed from A to B."""

    middle: float
    """A task counts as solved if its mean is at least this."""
    regression_count: int
    improvement_count: int
    unchanged_count: int
    """Tasks with the same mean in both runs."""
    other_count: int
    """Tasks whose mean changed without crossing the midpoint."""
    regressions: list[Flip]
    """Solved in A but not in B, largest change first, at most the requested number."""
    improvements: list[Flip]


@dataclass(frozen=True)
class AgentComparison:
    """One agent in both runs, or the only agent of each run."""

    agent_a: str
    agent_b: str
    verdict: Verdict
    metric: FieldComparison
    only_in_a: int
    """Tasks without a rollout in B."""
    only_in_b: int
    without_value: int
    """Tasks in both runs that lack the metric in one of them."""
    flips: Flips
    costs: list[FieldComparison]
    """Token counts, then fields whose names suggest a time."""
    fields: list[FieldComparison]
    """All other fields that are in both runs."""


@dataclass(frozen=True)
class Comparison:
    """The result of `compare_runs`."""

    a_fpath: Path
    b_fpath: Path
    metric: str
    confidence: float
    agents: list[AgentComparison]
    agents_only_in_a: list[str]
    agents_only_in_b: list[str]
    same_tasks: SameTasks
    warnings: list[str]

    def as_data(self) -> dict[str, Any]:
        """The comparison as JSON data: NaN and infinity become null."""
        data: dict[str, Any] = _plain(self)
        return data


def compare_runs(
    a: Path | str,
    b: Path | str,
    *,
    metric: str = "reward",
    agent_name: str | None = None,
    most_flips: int = DEFAULT_MOST_FLIPS,
    bad_lines: BadLines | None = None,
) -> Comparison:
    """Compare two rollouts files, task by task.

    Agents are paired by name; if each file has a single agent, these two are paired whatever their names.
    At most `most_flips` flipped tasks are listed in each direction.
    """
    a, b = Path(a), Path(b)
    bad_lines = BadLines() if bad_lines is None else bad_lines
    runs = _Run.read(a, bad_lines, agent_name), _Run.read(b, bad_lines, agent_name)
    pairings = _pairings(*runs)
    measured = [(pairing, values) for pairing in pairings if (values := pairing.values(metric)) is not None]
    if not measured:
        raise _nothing_to_compare(*runs, metric, pairings)
    inputs = read_inputs(a, b)
    tasks = np.unique(np.concatenate([values.tasks for _, values in measured]))
    a_rows, b_rows = runs[0].rows(), runs[1].rows()
    sameness = same_tasks(a_rows, b_rows, inputs, tasks)
    rows = inputs[0] if inputs is not None else a_rows
    compared = [_compared(pairing, metric, values, most_flips, rows) for pairing, values in measured]
    if sameness.none_is_same:
        compared = [replace(one, verdict="different_tasks") for one in compared]
    return Comparison(
        a,
        b,
        metric,
        CONFIDENCE,
        compared,
        sorted(set(runs[0].columns) - {pairing.agent_a for pairing in pairings}),
        sorted(set(runs[1].columns) - {pairing.agent_b for pairing in pairings}),
        sameness,
        [*_warnings(*runs, metric, pairings, compared), *filter(None, [sameness.warning()])],
    )


@dataclass(frozen=True)
class _Run:
    """One rollouts file."""

    path: Path
    columns: Mapping[str, Columns]
    """By agent."""
    index: OutputIndex

    @classmethod
    def read(cls, path: Path, bad_lines: BadLines, agent_name: str | None) -> "_Run":
        found = find_rollouts(path, bad_lines)
        if agent_name is None:
            return cls(path, found.columns, found.index)
        if agent_name not in found.columns:
            known = ", ".join(map(one_line, sorted(found.columns))) or "none"
            raise InputError(
                f"{path}: no rollout of agent {agent_name!r}; choose an agent of this file: {known}"
            )
        return cls(path, {agent_name: found.columns[agent_name]}, found.index)

    def rows(self) -> Rows:
        """The first rollout of each task."""
        keys, offsets = (np.asarray(numbers, np.int64) for numbers in (self.index.keys, self.index.offsets))
        return Rows(self.path, keys // packed(Key(1, 0)), offsets)

    def __str__(self) -> str:
        sizes = {agent: len(set(columns.tasks)) for agent, columns in sorted(self.columns.items())}
        counts = [f"{counted(size, 'task')} of {one_line(agent)}" for agent, size in sizes.items()]
        return f"{self.path} ({', '.join(counts) or 'no rollouts'})"


class _Paired(NamedTuple):
    """One field for the tasks that have a value in both runs."""

    tasks: Places
    a_means: Floats
    a_counts: Floats
    b_means: Floats
    b_counts: Floats

    def changes(self) -> Floats:
        """B minus A for each task; rounding errors are set to 0."""
        with np.errstate(all="ignore"):
            changes = self.b_means - self.a_means
            sizes = np.maximum(np.abs(self.a_means), np.abs(self.b_means))
            noise = np.where(np.isfinite(sizes), _ROUNDING * sizes, 0.0)
            changes[np.abs(changes) <= noise] = 0.0
            if (np.abs(changes - changes[0]) <= noise + noise[0]).all():
                changes[:] = changes[0]
        return changes


class _PerTask(NamedTuple):
    means: Floats
    counts: Floats


class _Side:
    """The rollouts of one agent in one run, by task."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._by_task = columns.by_task()
        self.tasks = self._by_task.tasks()

    def per_task(self, name: str, places: Places) -> _PerTask:
        """Mean and count for the tasks at these positions."""
        ordered = self._by_task.ordered(self.columns.values(name))
        is_present = ~np.isnan(ordered)
        ordered[~is_present] = 0.0
        with np.errstate(all="ignore"):
            counts = self._by_task.sums(is_present.astype(float))[places]
            return _PerTask(self._by_task.sums(ordered)[places] / counts, counts)

    def present(self, name: str) -> Floats:
        return as_floats(present(self.columns.values(name)))

    def summary(self, name: str, means: Floats, counts: Floats, *, is_binary: bool) -> Summary:
        values = self.present(name)
        within = Range.of_values(float(values.min()), float(values.max()))
        estimate = estimate_task_mean(means, are_shares=is_binary, within=within)
        with np.errstate(all="ignore"):
            total = float(values.sum())
        return Summary(estimate.mean, estimate.low, estimate.high, int(counts.sum()), total)


class _Pairing:
    """One agent of each run, and the tasks that both have."""

    def __init__(self, agent_a: str, a: Columns, agent_b: str, b: Columns) -> None:
        self.agent_a, self.agent_b = agent_a, agent_b
        self.a, self.b = _Side(a), _Side(b)
        self.tasks, self._a_places, self._b_places = np.intersect1d(
            self.a.tasks, self.b.tasks, assume_unique=True, return_indices=True
        )

    def __str__(self) -> str:
        names = [self.agent_a] if self.agent_a == self.agent_b else [self.agent_a, self.agent_b]
        return " and ".join(map(one_line, names))

    def names(self) -> list[str]:
        """The fields that both runs have."""
        in_b = set(self.b.columns.names)
        return [name for name in self.a.columns.names if name in in_b]

    def values(self, name: str) -> _Paired | None:
        """The paired values of a field; None if no task has it in both runs."""
        a, b = self.a.per_task(name, self._a_places), self.b.per_task(name, self._b_places)
        both = (a.counts > 0) & (b.counts > 0)
        if not both.any():
            return None
        return _Paired(self.tasks[both], a.means[both], a.counts[both], b.means[both], b.counts[both])

    def is_binary(self, name: str) -> bool:
        parts = (self.a.present(name), self.b.present(name))
        return all(bool(((part == 0.0) | (part == 1.0)).all()) for part in parts)

    def middle(self, name: str) -> float:
        """Halfway between the smallest and the largest value; always 0.5 for a field of 0 and 1."""
        if self.is_binary(name):
            return 0.5
        a, b = self.a.present(name), self.b.present(name)
        return min(float(a.min()), float(b.min())) / 2 + max(float(a.max()), float(b.max())) / 2

    def compared(self, name: str, values: _Paired) -> FieldComparison:
        is_binary, difference = self.is_binary(name), paired_difference(values.changes())
        return FieldComparison(
            name,
            len(values.tasks),
            self.a.summary(name, values.a_means, values.a_counts, is_binary=is_binary),
            self.b.summary(name, values.b_means, values.b_counts, is_binary=is_binary),
            difference.value,
            difference.std_err,
            difference.low,
            difference.high,
            difference.p_value,
            _method(difference),
        )


def _method(difference: Difference) -> str | None:
    if difference.p_value is None:
        return None
    return SIGN_TEST if difference.std_err == 0.0 else T_TEST


def _pairings(a: _Run, b: _Run) -> list[_Pairing]:
    names = [(agent, agent) for agent in sorted(set(a.columns) & set(b.columns))]
    if len(a.columns) == len(b.columns) == 1:
        names = list(zip(a.columns, b.columns, strict=True))
    return [_Pairing(agent_a, a.columns[agent_a], agent_b, b.columns[agent_b]) for agent_a, agent_b in names]


def _nothing_to_compare(a: _Run, b: _Run, metric: str, pairings: Sequence[_Pairing]) -> InputError:
    if a.columns and b.columns and not pairings:
        return InputError(f"{a} and {b} have no agent in common; compare runs of the same agents")
    for run, sides in ((a, [one.a for one in pairings]), (b, [one.b for one in pairings])):
        known = {name for side in sides for name in side.columns.names}
        if sides and metric not in known:
            return _no_such_field(run.path, metric, known)
    with_metric = f" with {metric!r} in both runs" if any(len(pairing.tasks) for pairing in pairings) else ""
    return InputError(f"{a} and {b} have no task in common{with_metric}; compare runs of the same input")


def _no_such_field(path: Path, metric: str, known: set[str]) -> InputError:
    names = sorted(map(one_line, known))
    close = close_matches(metric, names)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    more = f" and {len(names) - _MOST_FIELDS} more" if len(names) > _MOST_FIELDS else ""
    listed = ", ".join(names[:_MOST_FIELDS]) or "none"
    return InputError(
        f"{path}: no rollout has a numeric field {metric!r}; {hint}choose one with +metric=<name>: "
        f"{listed}{more}"
    )


def _warnings(
    a: _Run, b: _Run, metric: str, pairings: Sequence[_Pairing], compared: Sequence[AgentComparison]
) -> list[str]:
    done = {one.agent_a for one in compared}
    left_out = [
        f"{pairing} is left out: no task has {one_line(metric)} in both runs"
        for pairing in pairings
        if pairing.agent_a not in done
    ]
    non_finite = [
        (run.path, sum(columns.non_finite[metric] for columns in run.columns.values())) for run in (a, b)
    ]
    left_out += [
        f"{path}: {counted(count, 'value')} of {one_line(metric)} left out: NaN or infinite"
        for path, count in non_finite
        if count
    ]
    return left_out


def _compared(
    pairing: _Pairing, metric: str, values: _Paired, most_flips: int, rows: Rows
) -> AgentComparison:
    of_metric = pairing.compared(metric, values)
    others = [name for name in pairing.names() if name != metric]
    found = {
        name: pairing.compared(name, paired)
        for name in others
        if (paired := pairing.values(name)) is not None
    }
    found = dict(zip(found, _corrected(list(found.values())), strict=True))
    costs = [name for name in TOKENS if name in found] + [name for name in found if _is_time(name)]
    return AgentComparison(
        pairing.agent_a,
        pairing.agent_b,
        _verdict(of_metric),
        of_metric,
        len(pairing.a.tasks) - len(pairing.tasks),
        len(pairing.b.tasks) - len(pairing.tasks),
        len(pairing.tasks) - len(values.tasks),
        _flips(values, pairing.middle(metric), most_flips, rows),
        [found[name] for name in costs],
        [one for name, one in found.items() if name not in costs],
    )


def _verdict(metric: FieldComparison) -> Verdict:
    if metric.p_value is None:
        return "unknown"
    if metric.p_value >= SIGNIFICANT:
        return "no_difference_shown"
    return "b_higher" if metric.difference > 0 else "a_higher"


def _is_time(name: str) -> bool:
    words = re.split(r"[^a-z0-9]+", name.lower())
    return not _TIME.isdisjoint(words) or (len(words) > 1 and words[-1] in _UNITS_OF_TIME)


def _corrected(compared: Sequence[FieldComparison]) -> list[FieldComparison]:
    """The comparisons with p-values corrected for their number (Holm)."""
    tested = {place: one.p_value for place, one in enumerate(compared) if one.p_value is not None}
    corrected, floor = list(compared), 0.0
    for done, place in enumerate(sorted(tested, key=tested.__getitem__)):
        floor = min(1.0, max(floor, (len(tested) - done) * tested[place]))
        corrected[place] = replace(compared[place], p_value_holm=floor)
    return corrected


def _flips(values: _Paired, middle: float, most: int, rows: Rows) -> Flips:
    changes = values.changes()
    was_solved, is_solved = values.a_means >= middle, values.b_means >= middle
    fell = np.flatnonzero(was_solved & ~is_solved & (changes != 0.0))
    rose = np.flatnonzero(is_solved & ~was_solved & (changes != 0.0))

    def listed(places: Places) -> list[Flip]:
        largest = places[np.lexsort((values.tasks[places], -np.abs(changes[places])))][:most]
        columns = (values.a_means, values.a_counts, values.b_means, values.b_counts, changes)
        return [
            Flip(task, a_mean, int(a_count), b_mean, int(b_count), change, prompt_of(rows.read(task)))
            for task, a_mean, a_count, b_mean, b_count, change in zip(
                values.tasks[largest].tolist(),
                *(column[largest].tolist() for column in columns),
                strict=True,
            )
        ]

    unchanged = int((changes == 0.0).sum())
    other = len(changes) - len(fell) - len(rose) - unchanged
    return Flips(middle, len(fell), len(rose), unchanged, other, listed(fell), listed(rose))


def _plain(value: Any) -> Any:
    """The value as JSON data."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Flip):
        return _plain(value._asdict())
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
