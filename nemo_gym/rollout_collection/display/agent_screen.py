"""What a screen shows of one agent's metrics: headline, table, histogram of the rewards, pass@k.

Invariant: no line is wider than the terminal, and the metrics fit the lines that they may fill; the least
important rows of the table are left out if necessary.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from nemo_gym.metrics.columns import REWARD
from nemo_gym.metrics.headline import between, headline, warnings
from nemo_gym.metrics.summary import Bin, Summary
from nemo_gym.metrics.uncertainty import ERRORS
from nemo_gym.rollout_collection.display.tool_lines import tool_lines
from nemo_gym.rollout_collection.results.agent_metrics import Entry
from nemo_gym.terminal import bar_chart, one_line, step, table
from nemo_gym.text_fit import Screen, cut, fitted_columns, shortened, width_of, wrapped

_HEADER = ("metric", "value", "95 % CI", "median", "std", "min", "max")
_BESIDE_A_MEAN = ("median", "std", "min", "max")
_TOKENS = ("mean/input_tokens", "mean/output_tokens", "mean/total_tokens")
_CHART_TITLE = "rewards"
_WIDEST_BAR = 40
_FEW_BINS = 5
_FEWEST_ROWS = 2


def agent_screen(entry: Entry, screen: Screen) -> list[str]:
    """The metrics of an agent; a screen that is too small still gets the first rows of the table."""
    summary, (columns, lines) = entry.summary, screen
    head = _head(entry, columns)
    pass_at = _pass_at_lines(summary, columns)
    chart = _histogram_lines(summary.histogram, columns)
    rows = _rows(entry)
    room = lines - len(head) - len(pass_at)
    if len(rows) + _around_the_rows(chart) > room:
        chart = _histogram_lines(_fewer(summary.histogram), columns)
    drawn = _table_lines(rows, columns, max(_FEWEST_ROWS, room - _around_the_rows(chart)))
    return [*head, *drawn, *chart, *pass_at]


def shown_key_metrics(entry: Entry) -> dict[str, Any]:
    """The key metrics without the uncertainties of other metrics."""
    metrics = _all_metrics(entry)
    return {name: value for name, value in entry.key_metrics.items() if not _is_error(name, metrics)}


def _around_the_rows(chart: Sequence[str]) -> int:
    """Lines of the table and the chart that are not rows."""
    return 2 + len(chart)


def _head(entry: Entry, columns: int) -> list[str]:
    agent = shortened(one_line(entry.agent), columns // 2)
    summary = entry.summary
    texts = [f"{agent}: {headline(summary)}", *warnings(summary), *tool_lines(summary.tool_use)]
    if entry.note is not None:
        texts.append(one_line(entry.note))
    return [line for text in texts for line in wrapped(text, columns)]


def _rows(entry: Entry) -> list[list[str]]:
    """The key metrics that are numbers, each with its interval; means also with other statistics.

    The reward comes first, tokens come last; their total is left out beside the other two.
    """
    metrics = _all_metrics(entry)
    names = [name for name, value in shown_key_metrics(entry).items() if _is_figure(value)]
    names.sort(key=lambda name: (name != f"mean/{REWARD}", name in _TOKENS))
    if set(_TOKENS) <= set(names):
        names.remove(_TOKENS[-1])
    return [
        [one_line(name), _short(metrics[name]), _interval(name, metrics), *_others(name, metrics)]
        for name in names
    ]


def _table_lines(rows: list[list[str]], columns: int, most: int) -> list[str]:
    """The rows as a table, at most this many; the last one says how many are left out."""
    if not rows:
        return []
    left_out = len(rows) - (most - 1) if len(rows) > most else 0
    header, fitted = fitted_columns(_HEADER, rows[: len(rows) - left_out], columns)
    lines = table(header, fitted).splitlines()
    return [*lines, f"… and {left_out} more, in the aggregate metrics"] if left_out else lines


def _all_metrics(entry: Entry) -> dict[str, Any]:
    return {**entry.agent_metrics, **entry.key_metrics}


def _is_figure(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float)


def _is_error(name: str, metrics: Mapping[str, Any]) -> bool:
    metric, _, error = name.rpartition("/")
    return error in ERRORS and metric in metrics


def _interval(name: str, metrics: Mapping[str, Any]) -> str:
    low, high = (metrics.get(f"{name}/{end}") for end in ERRORS[1:])
    return between(low, high) if _is_figure(low) and _is_figure(high) else ""


def _others(name: str, metrics: Mapping[str, Any]) -> list[str]:
    label, _, field = name.partition("/")
    values = [metrics.get(f"{other}/{field}") if label == "mean" else None for other in _BESIDE_A_MEAN]
    return [_short(value) if _is_figure(value) else "" for value in values]


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _fewer(histogram: list[Bin]) -> list[Bin]:
    """Neighbouring bins as one, so that there are few."""
    together = -(-len(histogram) // _FEW_BINS)
    groups = [histogram[start : start + together] for start in range(0, len(histogram), together or 1)]
    return [Bin(group[0].low, group[-1].high, sum(one.count for one in group)) for group in groups]


def _histogram_lines(histogram: list[Bin], columns: int) -> list[str]:
    """One bar per range of rewards."""
    if not histogram:
        return []
    total, most = sum(one.count for one in histogram), max(one.count for one in histogram)
    labels = [_short(one.low) if one.low == one.high else between(one.low, one.high) for one in histogram]
    notes = [f"{one.count / total:4.0%}  {one.count}" for one in histogram]
    beside = len(_CHART_TITLE) + 6 + max(map(width_of, labels)) + max(map(width_of, notes))
    bars = [
        (label, one.count / most, note) for label, one, note in zip(labels, histogram, notes, strict=True)
    ]
    lines = bar_chart(bars, min(_WIDEST_BAR, max(columns - beside, 1))).splitlines()
    titles = [_CHART_TITLE, *[" " * len(_CHART_TITLE)] * (len(lines) - 1)]
    return [cut(f"{title}  {line}", columns) for title, line in zip(titles, lines, strict=True)]


def _pass_at_lines(summary: Summary, columns: int) -> list[str]:
    """pass@k as a row of bars."""
    figures = []
    for k, one in summary.pass_at.items():
        some = "" if one.tasks == summary.tasks else f" ({one.tasks} tasks)"
        figures.append(f"{k} {step(one.mean)} {one.mean:.0%}{some}")
    lines: list[str] = []
    title = "pass@k"
    for figure in figures:
        if not lines or width_of(lines[-1]) + width_of(figure) + 3 > columns:
            lines.append(f"{title:<6}  {figure}")
            title = ""
        else:
            lines[-1] += f"   {figure}"
    return lines
