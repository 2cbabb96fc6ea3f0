"""Metrics of k rollouts per task: `pass@k`, averages over runs and majority votes, as percentages.

The first k rollouts of a task are those with the smallest rollout indices, among the rollouts that have the
score. A score that is None, NaN or infinite counts as missing; a task without scores is left out. Tasks may
have different numbers of rollouts. A task with fewer than k is left out of `pass@k`; the other metrics use
all rollouts that it has.

Invariant: a result contains no NaN and no infinity; a metric that cannot be computed is absent.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, islice, repeat, zip_longest
from typing import Any, SupportsFloat

from nemo_gym.metrics.uncertainty import Estimate, Range, estimate_task_mean
from nemo_gym.types import ROLLOUT_INDEX_KEY_NAME

Rollouts = Sequence[dict[str, Any]]
ScoreFn = Callable[[dict[str, Any]], Mapping[str, Any]]
ScoreDicts = list[list[dict[str, float]]]
"""The scores of each rollout, grouped by task."""
Curve = list[float]
"""A figure of one task at k = 1, 2, … up to the number of its rollouts."""

# The exact types come first: `isinstance` finds them at once; SupportsFloat, for other libraries, is slow.
_NUMBER = (float, int, SupportsFloat)

_PASS = "pass@{k}"
_AVERAGE = "pass@1[avg-of-{k}]"
_MAJORITY = "majority@{k}"
_STATISTICS = frozenset(
    [
        "std_err",
        "ci95_low",
        "ci95_high",
        "std_dev_across_runs",
        "std_err_across_runs",
        "avg_sample_std_dev",
    ]
)
"""Suffixes of keys that hold the uncertainty or the spread of a metric."""


def compute_pass_majority_metrics(
    tasks: Sequence[Rollouts], score_fn: ScoreFn | None = None, answer_key: str | None = None
) -> tuple[dict[str, Any], ScoreDicts, list[str], int]:
    """The metrics, the scores behind them, the names of the scores, and the most rollouts of any task.

    `score_fn` returns the scores of a rollout: by default its reward, as `accuracy`. `answer_key` names the
    field with its answer; without it there are no majority votes. `per_sample_aggregate` has None for a run
    in which no task has the score.
    """
    tasks = [_in_order(rollouts) for rollouts in tasks]
    score = _scorer(score_fn or _accuracy, answer_key)
    scores = [[score(rollout) for rollout in rollouts] for rollouts in tasks]
    names = list(dict.fromkeys(name for task in scores for own in task for name in own))
    max_k = max(map(len, tasks), default=0)
    metrics: dict[str, Any] = {}
    for name in names:
        groups = _values(scores, name)
        estimated = partial(
            estimate_task_mean, are_shares=all(map(_is_binary, groups)), within=_range_of(groups)
        )
        _put_every_k(metrics, _PASS, name, _columns(map(_pass_curve, groups)), estimated)
        _put_every_k(metrics, _AVERAGE, name, _extended_columns(map(_mean_curve, groups), max_k), estimated)
        if answer_key is not None:
            votes = _extended_columns(_majority_curves(tasks, scores, name, answer_key), max_k)
            _put_every_k(metrics, _MAJORITY, name, votes, estimated)
    runs = {name: _means_of_runs(scores, name) for name in names}
    for name, means in runs.items():
        _put_spread_across_runs(metrics, name, means)
    if runs:
        metrics["per_sample_aggregate"] = runs
    return metrics, scores, names, max_k


def compute_subset_metrics(
    tasks: Sequence[Rollouts],
    subset_key: str,
    score_fn: ScoreFn | None = None,
    answer_key: str | None = None,
) -> dict[str, Any]:
    """`compute_pass_majority_metrics` for each value of a field, as `<value>/<metric>`.

    A rollout without the field gets the value of the first rollout of its task that has one. A task in which
    no rollout has the field is in no subset. If rollouts of a task differ in the field, each subset gets
    those with its value.
    """
    subsets: dict[str, list[Rollouts]] = {}
    for rollouts in tasks:
        for value, members in _split(_in_order(rollouts), subset_key).items():
            subsets.setdefault(value, []).append(members)
    metrics: dict[str, Any] = {}
    for value, parts in subsets.items():
        own, *_ = compute_pass_majority_metrics(parts, score_fn, answer_key)
        own.pop("per_sample_aggregate", None)
        metrics |= {f"{value}/{metric}": figure for metric, figure in own.items()}
    return metrics


def add_avg_sample_std_dev(
    metrics: dict[str, Any], all_score_dicts: ScoreDicts, score_names: Iterable[str], max_k: int
) -> None:
    """Add the mean over tasks of the sample standard deviation of a task's first k values, for k ≥ 2.

    It has the unit of the scores. A task with only one value is left out.
    """
    for name in score_names:
        curves = [_std_curve(values) for values in _values(all_score_dicts, name) if len(values) > 1]
        for k, values in enumerate(_extended_columns(curves, max_k), 1):
            if k > 1:
                metric = f"{_AVERAGE.format(k=k)}/{name}/avg_sample_std_dev"
                _put_finite(metrics, {metric: estimate_task_mean(values).mean})


def highest_k_metrics(
    agent_metrics: Mapping[str, Any],
    pattern: str,
    score_names: Iterable[str] | None = None,
    exclude_names: Iterable[str] | None = None,
) -> dict[str, Any]:
    """The metrics `<pattern>/<name>` at the largest k, without their uncertainties.

    `{k}` in the pattern is the place of the number: `pass@{k}`, `pass@1[avg-of-{k}]`, or `easy/pass@{k}` of a
    subset. `score_names` and `exclude_names` select the names.
    """
    before, mark, after = pattern.partition("{k}")
    if not mark:
        raise ValueError(f'no {{k}} in "{pattern}"; write {{k}} in place of the number, as in "pass@{{k}}"')
    wanted = None if score_names is None else set(score_names)
    unwanted = set(exclude_names or ())
    form = re.compile(rf"{re.escape(before)}([0-9]+){re.escape(after)}/(.+)", re.DOTALL)
    by_k: dict[int, dict[str, Any]] = {}
    for metric, figure in agent_metrics.items():
        match = form.fullmatch(metric)
        if match is None or _is_statistic(name := match[2]) or name in unwanted:
            continue
        if wanted is None or name in wanted:
            by_k.setdefault(int(match[1]), {})[metric] = figure
    return by_k[max(by_k)] if by_k else {}


def pass_at_k(values: Sequence[float], k: int) -> float:
    """The probability that at least one of k rollouts succeeds, from the values of one task in order.

    If all values are 0 or 1, the k rollouts are drawn without replacement. Otherwise it is the largest of the
    first k values.
    """
    if not 1 <= k <= len(values):
        raise ValueError(f"pass@{k}: the task has {len(values)} rollouts; k must be from 1 to that number")
    return _pass_curve(values)[k - 1]


def _in_order(rollouts: Rollouts) -> Rollouts:
    """The rollouts sorted by rollout index; those without one come last, in their original order."""

    def place(rollout: dict[str, Any]) -> tuple[bool, int]:
        index = rollout.get(ROLLOUT_INDEX_KEY_NAME)
        return (True, 0) if index is None else (False, index)

    return sorted(rollouts, key=place)


def _accuracy(rollout: dict[str, Any]) -> dict[str, Any]:
    return {"accuracy": rollout.get("reward")}


def _scorer(score_fn: ScoreFn, answer_key: str | None) -> Callable[[dict[str, Any]], dict[str, float]]:
    """A function that returns the scores of a rollout that are finite numbers."""

    def score(rollout: dict[str, Any]) -> dict[str, float]:
        scores = dict(score_fn(rollout))
        if answer_key is not None:
            scores["no_answer"] = rollout.get(answer_key) is None
        numbers = {name: _number(value) for name, value in scores.items()}
        return {name: number for name, number in numbers.items() if math.isfinite(number)}

    return score


def _number(value: object) -> float:
    """The value as a float; NaN if it is not a number."""
    try:
        return float(value) if isinstance(value, _NUMBER) else math.nan
    except OverflowError:  # an integer too large for a float
        return math.nan


def _values(scores: ScoreDicts, name: str) -> list[Curve]:
    """The values of each task that has any."""
    groups = ([own[name] for own in task if name in own] for task in scores)
    return [values for values in groups if values]


def _split(rollouts: Rollouts, key: str) -> dict[str, list[dict[str, Any]]]:
    """A task's rollouts by the value of a field, as text."""
    found = [rollout.get(key) for rollout in rollouts]
    first = next((value for value in found if value is not None), None)
    parts: dict[str, list[dict[str, Any]]] = {}
    if first is not None:
        for rollout, value in zip(rollouts, found, strict=True):
            parts.setdefault(str(first if value is None else value), []).append(rollout)
    return parts


def _is_statistic(name: str) -> bool:
    of, _, last = name.rpartition("/")
    return bool(of) and last in _STATISTICS


def _is_binary(values: Iterable[float]) -> bool:
    return all(value in (0, 1) for value in values)


def _pass_curve(values: Sequence[float]) -> Curve:
    if not _is_binary(values):
        return list(accumulate(values, max))
    count = len(values)
    wrong = sum(value == 0 for value in values)
    curve, draws, wrong_draws = [], 1, 1
    for k in range(1, wrong + 1):
        # Integers: they may be too large for a float, and their quotient is correctly rounded.
        draws = draws * (count - k + 1) // k
        wrong_draws = wrong_draws * (wrong - k + 1) // k
        curve.append((draws - wrong_draws) / draws)
    return curve + [1.0] * (count - wrong)


def _mean_curve(values: Sequence[float]) -> Curve:
    return [total / count for count, total in enumerate(accumulate(values), 1)]


def _std_curve(values: Sequence[float]) -> Curve:
    """Sample standard deviations, updated value by value (Welford); the first is 0."""
    unit = max(map(abs, values), default=0.0) or 1.0  # in this unit no square overflows or underflows
    curve, mean, squares = [], 0.0, 0.0
    for count, value in enumerate(values, 1):
        change = value / unit - mean
        mean += change / count
        squares += change * (value / unit - mean)
        curve.append(unit * math.sqrt(squares / (count - 1)) if count > 1 else 0.0)
    return curve


def _majority_curves(
    tasks: Sequence[Rollouts], scores: ScoreDicts, name: str, answer_key: str
) -> Iterator[Curve]:
    for rollouts, own_scores in zip(tasks, scores, strict=True):
        votes = [
            (_comparable(rollout.get(answer_key)), own[name])
            for rollout, own in zip(rollouts, own_scores, strict=True)
            if name in own
        ]
        if votes:
            yield _majority_curve(votes)


def _majority_curve(votes: Iterable[tuple[Hashable, float]]) -> Curve:
    """The score of the most frequent pair of answer and score; the mean score of ties; 0 without answers."""
    counts: Counter[tuple[Hashable, float]] = Counter()
    curve, most, total, tied = [], 0, 0.0, 0
    for vote in votes:
        answer, score = vote
        if answer is not None:
            counts[vote] += 1
            if counts[vote] > most:
                most, total, tied = counts[vote], score, 1
            elif counts[vote] == most:
                total, tied = total + score, tied + 1
        curve.append(total / tied if tied else 0.0)
    return curve


def _comparable(answer: Any) -> Hashable:
    """A hashable value, equal for equal answers: 1 equals 1.0, but not true or "1". None stays None."""
    match answer:
        case None | str():
            return answer
        case bool():
            return bool, answer
        case int() | float():
            return answer if answer == answer else (float, "nan")
        case Mapping():
            return dict, frozenset((_comparable(key), _comparable(value)) for key, value in answer.items())
        case list() | tuple():
            return list, *map(_comparable, answer)
    return type(answer), repr(answer)


def _columns(curves: Iterable[Curve]) -> Iterator[Sequence[float]]:
    """For each k, the figures of the tasks with at least k rollouts."""
    for column in zip_longest(*curves):
        yield [value for value in column if value is not None]


def _extended_columns(curves: Iterable[Curve], max_k: int) -> Iterator[Sequence[float]]:
    """For each k, the figures of all tasks; a task with fewer rollouts repeats its last figure."""
    return islice(zip(*(chain(curve, repeat(curve[-1])) for curve in curves), strict=False), max_k)


def _range_of(groups: Sequence[Sequence[float]]) -> Range:
    values = [*chain.from_iterable(groups)]
    return Range.of_values(min(values, default=0.0), max(values, default=0.0))


def _put_every_k(
    metrics: dict[str, Any],
    pattern: str,
    name: str,
    columns: Iterable[Sequence[float]],
    estimated: Callable[[Sequence[float]], Estimate],
) -> None:
    for k, values in enumerate(columns, 1):
        metric = f"{pattern.format(k=k)}/{name}"
        estimate = estimated(values).scaled(100)
        _put_finite(metrics, {metric: estimate.mean, **estimate.named(metric)})


def _put_spread_across_runs(metrics: dict[str, Any], name: str, means: Sequence[float | None]) -> None:
    """Add the spread of the means of the runs; runs without a mean are skipped, one run has no spread."""
    spreads = _std_curve([mean for mean in means if mean is not None])
    runs = 0
    for k, mean in enumerate(means, 1):
        runs += mean is not None
        if runs > 1:
            metric, spread = f"{_AVERAGE.format(k=k)}/{name}", spreads[runs - 1]
            figures = {"std_dev_across_runs": spread, "std_err_across_runs": spread / math.sqrt(runs)}
            _put_finite(metrics, {f"{metric}/{label}": figure for label, figure in figures.items()})


def _means_of_runs(scores: ScoreDicts, name: str) -> list[float | None]:
    no_scores: dict[str, float] = {}
    runs = zip_longest(*scores, fillvalue=no_scores)
    means = (_percentage([own[name] for own in run if name in own]) for run in runs)
    return [mean if math.isfinite(mean) else None for mean in means]


def _percentage(values: Sequence[float]) -> float:
    """The mean of one value per task, in percent; NaN without values."""
    return estimate_task_mean(values).scaled(100).mean


def _put_finite(metrics: dict[str, Any], figures: Mapping[str, float]) -> None:
    metrics.update((metric, figure) for metric, figure in figures.items() if math.isfinite(figure))
