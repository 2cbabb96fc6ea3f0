"""The result of a run, as lines for people and as data."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from nemo_gym.metrics.headline import between, headline, warnings
from nemo_gym.metrics.summary import Bin, Summary
from nemo_gym.metrics.uncertainty import ERRORS
from nemo_gym.path_utils import (
    aggregate_metrics_path_for,
    failures_path_for,
    manifest_path_for,
    materialized_path_for,
)
from nemo_gym.rollout_collection.results.agent_metrics import Entry
from nemo_gym.rollout_collection.results.collected import Collected
from nemo_gym.terminal import bar_chart, one_line, step, table

RESUME_HINT = "The same command with +resume_from_cache=true runs the missing rollouts."
_BAR_WIDTH = 40
_BESIDE_A_MEAN = ("median", "std", "min", "max")


def report(collected: Collected) -> list[str]:
    """Key metrics, the ledger with the most frequent errors, the files, and what to do next."""
    ledger = collected.ledger
    lines = metrics_lines(collected.entries or [])
    if reason := collected.stopped_by or collected.limit_reached:
        lines.append(f"Stopped early: {reason}.")
    lines.append(f"Result: {ledger}")
    lines += [f"  {cause}" for cause in ledger.worst()]
    lines += [f"{what}: {path}" for what, path in _files(collected)]
    lines += [*collected.warnings, *collected.tracked]
    if not ledger.is_complete:
        can_resume = ledger.succeeded + ledger.skipped.total() < ledger.planned
        lines.append(f"Not all rollouts succeeded. {RESUME_HINT if can_resume else ''}".rstrip())
    return lines


def report_data(collected: Collected) -> dict[str, Any]:
    """The same as data."""
    return {
        "result": collected.ledger.as_data(),
        "stopped_by": collected.stopped_by or collected.limit_reached,
        "agents": entries_data(collected.entries or []),
        "files": {what.lower().replace(" ", "_"): str(path) for what, path in _files(collected)},
        "trackers": collected.tracked,
        "warnings": collected.warnings,
    }


def metrics_lines(entries: Iterable[Entry]) -> list[str]:
    """For each agent: the key metrics as indented JSON, then a summary."""
    return [line for entry in entries for line in (*_key_metrics_lines(entry), *_summary_lines(entry))]


def entries_data(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    return [
        {
            **entry.summary.as_data(),
            "note": entry.note,
            "key_metrics": entry.key_metrics,
            "agent_metrics": dict(entry.agent_metrics),
        }
        for entry in entries
    ]


def _key_metrics_lines(entry: Entry) -> list[str]:
    return [f"Key metrics of {one_line(entry.agent)}:", json.dumps(entry.key_metrics, indent=2)]


def _summary_lines(entry: Entry) -> list[str]:
    summary = entry.summary
    lines = ["", f"{one_line(entry.agent)}: {headline(summary)}", *warnings(summary)]
    if entry.note is not None:
        lines.append(one_line(entry.note))
    for part in (_key_metrics_table(entry), _histogram_lines(summary.histogram), _pass_at_line(summary)):
        lines += ["", *part] if part else []
    return [*lines, ""]


def _key_metrics_table(entry: Entry) -> list[str]:
    """The key metrics that are numbers, each with its interval; means also with other statistics."""
    metrics = {**entry.agent_metrics, **entry.key_metrics}
    names = [name for name in entry.key_metrics if _is_figure(metrics[name]) and not _is_error(name, metrics)]
    if not names:
        return []
    rows = [
        [name, _short(metrics[name]), _interval(name, metrics), *_others(name, metrics)] for name in names
    ]
    return table(("metric", "value", "95 % CI", *_BESIDE_A_MEAN), rows).splitlines()


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


def _histogram_lines(histogram: list[Bin]) -> list[str]:
    """One bar per range of rewards."""
    if not histogram:
        return []
    total, most = sum(one.count for one in histogram), max(one.count for one in histogram)
    bars = [
        (
            _short(one.low) if one.low == one.high else between(one.low, one.high),
            one.count / most,
            f"{one.count / total:4.0%}  {one.count}",
        )
        for one in histogram
    ]
    return ["rewards", *(f"  {line}" for line in bar_chart(bars, _BAR_WIDTH).splitlines())]


def _pass_at_line(summary: Summary) -> list[str]:
    """pass@k as a row of bars."""
    figures = []
    for k, one in summary.pass_at.items():
        some = "" if one.tasks == summary.tasks else f" ({one.tasks} tasks)"
        figures.append(f"{k} {step(one.mean)} {one.mean:.0%}{some}")
    return ["pass@k  " + "   ".join(figures)] if figures else []


def _files(collected: Collected) -> Iterator[tuple[str, Path]]:
    output = collected.output
    has_failures = collected.ledger.failed or collected.ledger.cancelled
    failures = "Failures" if has_failures else "Failures of earlier runs"
    named = {
        "Materialized inputs": materialized_path_for(output),
        "Rollouts": output,
        failures: failures_path_for(output),
        "Aggregate metrics": aggregate_metrics_path_for(output),
        "Manifest": manifest_path_for(output),
    }
    if collected.entries is None:
        del named["Aggregate metrics"]
    return ((what, path) for what, path in named.items() if path.exists())
