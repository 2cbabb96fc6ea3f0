"""The result of a run, as lines for people and as data."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nemo_gym.path_utils import (
    aggregate_metrics_path_for,
    failures_path_for,
    manifest_path_for,
    materialized_path_for,
)
from nemo_gym.rollout_collection.display.agent_screen import agent_screen, shown_key_metrics
from nemo_gym.rollout_collection.display.quantities import duration, short_number
from nemo_gym.rollout_collection.results.agent_metrics import Entry
from nemo_gym.rollout_collection.results.collected import Collected, Throughput
from nemo_gym.terminal import one_line
from nemo_gym.text_fit import Screen, cut, height_of, shortened, wrapped

RESUME_HINT = "The same command with +resume_from_cache=true runs the missing rollouts."


def report(collected: Collected, screen: Screen) -> list[str]:
    """Key metrics, the ledger with the most frequent errors, the files, and what to do next.

    With one agent, all but the JSON of the means fits the screen.
    """
    tail = _result_lines(collected, screen.columns)
    room = Screen(screen.columns, screen.lines - height_of(tail, screen.columns))
    return [*metrics_lines(collected.entries or [], room), *tail]


def report_data(collected: Collected) -> dict[str, Any]:
    """The same as data."""
    return {
        "result": collected.ledger.as_data(),
        "causes": [
            {"cause": str(cause), "rollouts": count} for cause, count in collected.ledger.causes.most_common()
        ],
        "stopped_by": collected.stopped_by or collected.limit_reached,
        "throughput": collected.throughput.as_data() if collected.throughput else None,
        "agents": entries_data(collected.entries or []),
        "files": {what.lower().replace(" ", "_"): str(path) for what, path in _files(collected)},
        "trackers": collected.tracked,
        "warnings": collected.warnings,
    }


def metrics_lines(entries: Iterable[Entry], screen: Screen) -> list[str]:
    """For each agent: the means as indented JSON, then a screen of all metrics and a blank line."""
    columns, lines = screen
    return [
        line
        for entry in entries
        for line in (*_means_lines(entry, columns), *agent_screen(entry, Screen(columns, lines - 1)), "")
    ]


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


def _means_lines(entry: Entry, columns: int) -> list[str]:
    title = "Key metrics of "
    agent = shortened(one_line(entry.agent), columns - len(title) - 1)
    return [f"{title}{agent}:", *json.dumps(shown_key_metrics(entry), indent=2).splitlines()]


def _result_lines(collected: Collected, columns: int) -> list[str]:
    """The ledger, the causes of failures, the throughput, the files, and what to do next."""
    ledger = collected.ledger
    texts = []
    if reason := collected.stopped_by or collected.limit_reached:
        texts.append(f"Stopped early: {reason}.")
    texts.append(f"Result: {ledger}")
    lines = [line for text in texts for line in wrapped(text, columns)]
    lines += [cut(f"  {cause}", columns) for cause in ledger.causes.lines()]
    if collected.throughput is not None:
        lines += wrapped(_throughput_text(collected.throughput, collected.ledger.planned), columns)
    lines += [f"{what}: {path}" for what, path in _files(collected)]
    lines += [*collected.warnings, *collected.tracked]
    if not ledger.is_complete:
        can_resume = ledger.succeeded + ledger.skipped.total() < ledger.planned
        lines += wrapped(RESUME_HINT if can_resume else "Not all rollouts succeeded.", columns)
    return lines


def _throughput_text(found: Throughput, planned: int) -> str:
    of_all = "" if found.rollouts == planned else f" for {found.rollouts} of {planned} rollouts"
    text = f"Run time: {duration(found.seconds)}{of_all}, {short_number(found.per_minute)} rollouts/min"
    tokens = {"in": found.input_tokens, "out": found.output_tokens}
    if not any(tokens.values()):
        return text
    counts = [
        f"{short_number(count)} {way} ({short_number(count / found.seconds)}/s)"
        for way, count in tokens.items()
    ]
    return f"{text}, tokens {', '.join(counts)}"


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
