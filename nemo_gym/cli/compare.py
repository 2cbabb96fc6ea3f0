"""`ng_compare`: compare two runs, as text or as JSON."""

import math
import sys
from collections.abc import Iterator, Sequence

from pydantic import Field

from nemo_gym.analysis.comparison import (
    DEFAULT_MOST_FLIPS,
    SIGN_TEST,
    SIGNIFICANT,
    AgentComparison,
    Comparison,
    FieldComparison,
    Flip,
    Flips,
    Summary,
    compare_runs,
)
from nemo_gym.analysis.same_tasks import SameTasks
from nemo_gym.cli.command import Command
from nemo_gym.cli.output import complain, say, say_json
from nemo_gym.config import GymConfig
from nemo_gym.config.roots import expand
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.records import BadLines
from nemo_gym.terminal import counted, one_line, table
from nemo_gym.text_fit import UNLIMITED, Screen, cut, fitted_columns

_WIDTH = 100
_LEAST_PROMPT = 20
"""Columns that a prompt gets even if its line then exceeds `_WIDTH`."""
_MANY_FIELDS = 5
_MOST_DECIMALS = 6
_REWARD = "reward"


class CompareConfig(BaseNeMoGymCLIConfig):
    a_fpath: str
    """Rollouts file of run A, the baseline."""
    b_fpath: str
    """Rollouts file of run B. Differences are B minus A."""
    metric: str = _REWARD
    """The numeric field of the rollouts to compare. Higher counts as better."""
    agent_name: str | None = None
    """Compare only this agent. Default: every agent that is in both files; if each file has only one agent,
    those two."""
    most_flips: int = Field(default=DEFAULT_MOST_FLIPS, ge=0)
    """How many flipped tasks to list per direction. All of them are counted."""
    json_output: bool = False
    """Print one JSON object instead of text."""
    skip_bad_lines: bool = False
    """Skip lines that are not rollouts and rollouts whose key occurs in an earlier line, and list them.
    Without it, the first such line is an error."""


def run(config: GymConfig, options: CompareConfig) -> int:
    bad_lines = BadLines(options.skip_bad_lines)
    found = compare_runs(
        expand(options.a_fpath),
        expand(options.b_fpath),
        metric=options.metric,
        agent_name=options.agent_name,
        most_flips=options.most_flips,
        bad_lines=bad_lines,
    )
    for line in bad_lines.warning_lines():
        complain(line)
    if options.json_output:
        say_json(found.as_data(), allow_nan=False)
    else:
        say("\n".join(report(found, Screen.of(sys.stdout).columns)))
    return 0


def report(found: Comparison, columns: int = UNLIMITED.columns) -> Iterator[str]:
    """The lines for people; tables are at most this wide."""
    yield f"A: {found.a_fpath}"
    yield f"B: {found.b_fpath}"
    for warning in found.warnings:
        yield f"warning: {warning}"
    for agent in found.agents:
        yield ""
        yield from _section(agent, columns)
    yield ""
    yield from _only_in("A", found.agents_only_in_a)
    yield from _only_in("B", found.agents_only_in_b)
    yield _same_tasks(found.same_tasks)


def _section(agent: AgentComparison, columns: int) -> Iterator[str]:
    if agent.agent_a == agent.agent_b:
        yield one_line(agent.agent_a)
    else:
        yield f"{one_line(agent.agent_a)} in A and {one_line(agent.agent_b)} in B: two agents, same tasks"
    if agent.verdict == "different_tasks":
        a, b = _number(agent.metric.a.mean), _number(agent.metric.b.mean)
        yield f"{one_line(agent.metric.name)}: A {a}, B {b}"
        yield "No verdict: none of the tasks is the same in both runs"
        yield from _counts(agent)
        return
    yield _headline(agent.metric)
    yield _verdict(agent) + (f" ({agent.metric.method})" if agent.metric.method else "")
    yield from _counts(agent)
    yield from _flip_lines(agent.flips, agent.metric.name, columns)
    yield from _field_lines(agent, columns)


def _headline(metric: FieldComparison) -> str:
    decimals = _decimals(metric)
    a, b = _number(metric.a.mean, decimals), _number(metric.b.mean, decimals)
    interval = ""
    if metric.ci95_low is not None and metric.ci95_high is not None:
        low, high = _number(metric.ci95_low, decimals), _number(metric.ci95_high, decimals)
        interval = f" (95 % CI {low} to {high})"
    p_value = "" if metric.p_value is None else f", {_p_text(metric.p_value, 'p = ', 'p < ')}"
    return (
        f"{one_line(metric.name)}: A {a}, B {b}, difference {_difference(metric)}{interval}{p_value}, "
        f"{counted(metric.tasks, 'task')} paired"
    )


def _verdict(agent: AgentComparison) -> str:
    metric = agent.metric
    better = "better" if metric.name == _REWARD else "higher"
    match agent.verdict:
        case "b_higher":
            return f"B is {better}"
        case "a_higher":
            return f"A is {better}"
        case "unknown" if metric.tasks == 1:
            return "One task is too few for an interval and a p-value"
        case "unknown":
            return "The values are too large for an interval"
    if _is_equal(metric):
        return "Every task has the same mean in both"
    if metric.method == SIGN_TEST:
        return f"All {metric.tasks} tasks differ by the same amount, but are too few to rule out chance"
    return f"No significant difference with {metric.tasks} tasks"


def _counts(agent: AgentComparison) -> Iterator[str]:
    metric = agent.metric
    yield f"A alone: {_alone(metric.a, _decimals(metric))}; B alone: {_alone(metric.b, _decimals(metric))}"
    if agent.only_in_a or agent.only_in_b:
        yield f"Not compared: {counted(agent.only_in_a, 'task')} only in A, {agent.only_in_b} only in B"
    if agent.without_value:
        tasks = counted(agent.without_value, "task")
        yield f"Not compared: {tasks} without {one_line(metric.name)} in one of the runs"


def _alone(run: Summary, decimals: int | None) -> str:
    """The confidence interval of one run's mean."""
    low, high, count = run.ci95_low, run.ci95_high, counted(run.rollouts, "rollout")
    if low is None or high is None:
        return f"{_number(run.mean, decimals)} ({count})"
    return f"95 % CI {_number(low, decimals)} to {_number(high, decimals)} ({count})"


def _flip_lines(flips: Flips, metric: str, columns: int) -> Iterator[str]:
    fell, rose = flips.regression_count, flips.improvement_count
    yield ""
    yield (
        f"Flips (a task is solved if its mean {one_line(metric)} is at least {_number(flips.middle)}): "
        f"{counted(fell, 'regression')}, {counted(rose, 'improvement')}, {flips.unchanged_count} unchanged, "
        f"{flips.other_count} other changes"
    )
    yield from _flip_table("Regressions", "solved in A, not in B", flips.regressions, fell, columns)
    yield from _flip_table("Improvements", "solved in B, not in A", flips.improvements, rose, columns)


def _flip_table(title: str, meaning: str, flips: Sequence[Flip], count: int, columns: int) -> Iterator[str]:
    if not flips:
        return
    some = "" if len(flips) == count else f", the {len(flips)} largest of {count}"
    yield ""
    yield f"{title} ({meaning}{some}):"
    header = ["task", "A (rollouts)", "B (rollouts)", "change"]
    rows = [
        [
            str(flip.task),
            f"{_number(flip.a_mean)} ({flip.a_rollouts})",
            f"{_number(flip.b_mean)} ({flip.b_rollouts})",
            _signed(flip.change),
        ]
        for flip in flips
    ]
    if any(flip.prompt for flip in flips):
        taken = sum(max(map(len, column)) + 2 for column in zip(header, *rows, strict=True))
        room = max(_LEAST_PROMPT, min(_WIDTH, columns) - taken)
        rows = [[*row, cut(flip.prompt, room)] for row, flip in zip(rows, flips, strict=True)]
        header.append("prompt")
    yield table(*fitted_columns(header, rows, columns))


def _field_lines(agent: AgentComparison, columns: int) -> Iterator[str]:
    p_values = [one.p_value for one in (*agent.costs, *agent.fields) if one.p_value is not None]
    is_many = len(p_values) > _MANY_FIELDS
    if agent.costs:
        yield ""
        yield "Cost (mean per rollout; totals over all rollouts of the agent):"
        header = ["", "A", "B", "difference", "p", "A total", "B total"]
        rows = [[*_field_row(one, is_many), *_totals(one)] for one in agent.costs]
        yield table(*fitted_columns(header, rows, columns))
    others = [one for one in agent.fields if not _is_equal(one)]
    if others:
        yield ""
        yield "Other fields:"
        rows = [_field_row(one, is_many) for one in others]
        yield table(*fitted_columns(["", "A", "B", "difference", "p"], rows, columns))
    if is_many and min(p_values) < SIGNIFICANT:
        yield (
            f"With {len(p_values)} fields, some have p < {SIGNIFICANT} by chance; "
            "* marks fields that are significant after Holm's correction"
        )
    if len(others) < len(agent.fields):
        names = [one_line(one.name) for one in agent.fields if _is_equal(one)]
        yield f"Equal in both runs, task by task: {', '.join(names)}"


def _totals(one: FieldComparison) -> list[str]:
    return [_number(one.a.total), _number(one.b.total)]


def _is_equal(one: FieldComparison) -> bool:
    """Whether every task has the same mean in both."""
    return one.std_err == 0.0 and one.difference == 0.0


def _field_row(one: FieldComparison, is_marked: bool) -> list[str]:
    decimals = _decimals(one)
    holds = is_marked and one.p_value_holm is not None and one.p_value_holm < SIGNIFICANT
    p_value = "" if one.p_value is None else _p_text(one.p_value, "", "< ") + (" *" if holds else "")
    a, b = _number(one.a.mean, decimals), _number(one.b.mean, decimals)
    return [one_line(one.name), a, b, _difference(one), p_value]


def _only_in(run: str, agents: Sequence[str]) -> Iterator[str]:
    if agents:
        yield f"Only in {run}, not compared: {', '.join(map(one_line, agents))}"


def _same_tasks(same: SameTasks) -> str:
    if same.basis is None:
        return (
            "Could not check that the tasks are the same: this needs the materialized inputs of both runs, "
            "or prompts in the rollouts."
        )
    looked = f"compared by {same.basis} ({same.checked} of {same.shared} shared tasks)"
    if not same.different_count:
        return f"The tasks are the same in both runs, {looked}."
    return f"{counted(same.different_count, 'task')} differ between the runs, {looked}."


def _difference(one: FieldComparison) -> str:
    """`+0.040 ± 0.021`, rounded to what the interval supports."""
    value = _signed(one.difference, _decimals(one))
    if one.ci95_low is None or one.ci95_high is None:
        return value
    return f"{value} ± {_number((one.ci95_high - one.ci95_low) / 2, _decimals(one))}"


def _decimals(one: FieldComparison) -> int | None:
    """Enough for two digits of the interval's half-width and three of the means; None if too many."""
    if one.ci95_low is None or one.ci95_high is None:
        return None
    reach, largest = (one.ci95_high - one.ci95_low) / 2, max(abs(one.a.mean), abs(one.b.mean))
    if not (0.0 < reach < math.inf and 0.0 < largest < math.inf):
        return None
    decimals = max(0, 1 - math.floor(math.log10(reach)), 2 - math.floor(math.log10(largest)))
    return decimals if decimals <= _MOST_DECIMALS else None


def _number(value: float, decimals: int | None = None) -> str:
    if not math.isfinite(value) or abs(value) >= 1e15:
        return f"{value:.4g}"
    if decimals is not None:
        text = f"{value:,.{decimals}f}"
        return text.removeprefix("-") if not text.strip("-0.,") else text
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _signed(value: float, decimals: int | None = None) -> str:
    text = _number(value, decimals)
    return f"+{text}" if value > 0 else text


def _p_text(p_value: float, equals: str, below: str) -> str:
    return f"{below}0.0001" if p_value < 0.0001 else f"{equals}{p_value:.2g}"


COMMAND = Command(
    "compare",
    CompareConfig,
    run,
    "ng_compare results/before.jsonl results/after.jsonl",
    reads_files=False,
    positional=("a_fpath", "b_fpath"),
)
