"""The report at the end of a run."""

import re

import pytest

from tests.support.scripted_agent import Playground

Capture = pytest.CaptureFixture[str]


def test_run_from_python_reports_metrics_ledger_and_paths(playground: Playground, capsys: Capture) -> None:
    playground.collect()
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = re.sub(r"[\d.]+k? (s,|rollouts/min)", r"… \1", captured.err).splitlines()
    assert lines[lines.index("Key metrics of scripted:") :] == [
        "Key metrics of scripted:",
        "{",
        '  "mean/reward": 1.0',
        "}",
        "scripted: reward 1.00 (95 % CI 0.29–1.00, 3 tasks × 1), 100 % complete",
        "metric       value  95 % CI    median  std  min  max",
        "────────────────────────────────────────────────────",
        "mean/reward  1      0.29–1.00  1       0    1    1",
        "rewards  1  ████████████████████████████████████████  100%  3",
        "",
        "Result: 3 planned = 3 succeeded + 0 failed + 0 not run; 0 retried",
        "Run time: … s, … rollouts/min",
        "Materialized inputs: out/rollouts_materialized_inputs.jsonl",
        "Rollouts: out/rollouts.jsonl",
        "Aggregate metrics: out/rollouts_aggregate_metrics.json",
        "Manifest: out/rollouts_manifest.json",
    ]


def test_failures_are_reported_with_their_causes_and_how_to_resume(
    playground: Playground, capsys: Capture
) -> None:
    playground.set_response("1:0", "no rollout", status=400)
    playground.collect()
    stderr = capsys.readouterr().err
    assert "Result: 3 planned = 2 succeeded + 1 failed (1 data) + 0 not run" in stderr
    assert "\n  1 x data: scripted/run 400" in stderr
    assert "\nFailures: out/rollouts_failures.jsonl\n" in stderr
    assert stderr.endswith("The same call with resume_from_cache=True runs the missing rollouts.\n")


def test_failures_that_have_succeeded_since_are_those_of_earlier_runs(
    playground: Playground, capsys: Capture
) -> None:
    playground.set_response("1:0", "no rollout", status=503)
    playground.collect()
    playground.reset_responses()
    capsys.readouterr()
    playground.collect(resume_from_cache=True)
    stderr = capsys.readouterr().err
    assert "3 planned = 3 succeeded + 0 failed" in stderr
    assert "\nFailures of earlier runs: out/rollouts_failures.jsonl\n" in stderr
    assert "\nFailures: " not in stderr


def test_skipped_failures_count_in_this_run(playground: Playground, capsys: Capture) -> None:
    playground.set_response("1:0", _ng_failure_class="hopeless", _ng_failure_terminal=True)
    playground.collect()
    capsys.readouterr()
    playground.collect(resume_from_cache=True)
    stderr = capsys.readouterr().err
    assert "\nFailures: out/rollouts_failures.jsonl\n" in stderr
    assert stderr.endswith("Not all rollouts succeeded.\n")  # a resumed run would have nothing to run


def test_every_line_of_the_final_report_has_a_unique_name(playground: Playground, capsys: Capture) -> None:
    playground.set_response("1:0", "no rollout", status=400)
    playground.collect()
    stderr = capsys.readouterr().err
    names = [line.partition(": ")[0] for line in stderr[stderr.index("Result: ") :].splitlines()]
    assert len(names) == len(set(names))
