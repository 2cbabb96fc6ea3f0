"""Resuming: finished rollouts are not run again, failed ones until their attempts are spent."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ChangedInputsError
from tests.support.components import write_files
from tests.support.scripted_agent import Playground, keys_of, records_of, row, write_agent

Capture = pytest.CaptureFixture[str]

NO_ROLLOUT = "[1, 2]"
"""A response that is a data failure."""


def set_aside_of(playground: Playground) -> list[Path]:
    """The backups and torn lines that were set aside; a glob for `.jsonl` does not match them."""
    names = [path for path in playground.output.parent.iterdir() if path.suffix in (".bak", ".torn")]
    assert not any(path.name.endswith(".jsonl") for path in names)
    return sorted(names)


def test_done_rollouts_are_not_run_again(playground: Playground, capsys: Capture) -> None:
    playground.set_response("1:0", NO_ROLLOUT)
    assert keys_of(playground.collect()) == ["0:0", "2:0"]
    before = playground.output.read_bytes()
    playground.played()
    playground.reset_responses()
    capsys.readouterr()
    rollouts = playground.collect(resume_from_cache=True)
    assert playground.played() == ["1:0"]
    assert keys_of(rollouts) == ["0:0", "1:0", "2:0"]
    assert playground.output.read_bytes().startswith(before)
    assert "Resuming: 3 rollouts planned, 2 done, 1 remaining" in capsys.readouterr().err


def test_resumed_complete_run_plays_no_rollouts(playground: Playground, capsys: Capture) -> None:
    first = playground.collect()
    before = playground.output.read_bytes()
    playground.played()
    assert playground.collect(resume_from_cache=True) == list(first)
    assert playground.played() == []
    assert playground.output.read_bytes() == before
    assert "3 done, 0 remaining" in capsys.readouterr().err


def metrics_file(playground: Playground) -> Path:
    return playground.output.with_name(f"{playground.output.stem}_aggregate_metrics.json")


def test_unchanged_metrics_are_not_written_again(playground: Playground) -> None:
    playground.collect()
    before = metrics_file(playground).stat()
    for _ in range(2):
        playground.collect(resume_from_cache=True)
        after = metrics_file(playground).stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_missing_or_changed_metrics_are_written_again(playground: Playground) -> None:
    playground.collect()
    good = metrics_file(playground).read_bytes()
    metrics_file(playground).unlink()
    playground.collect(resume_from_cache=True)
    assert metrics_file(playground).read_bytes() == good
    metrics_file(playground).write_bytes(good.replace(b"mean", b"meal"))
    playground.collect(resume_from_cache=True)
    assert metrics_file(playground).read_bytes() == good


def test_metrics_are_written_again_if_a_rollout_has_changed(playground: Playground) -> None:
    playground.collect()
    lines = records_of(playground.output)
    lines[1]["reward"] = 0.25
    playground.output.write_text("".join(json.dumps(line) + "\n" for line in lines))
    playground.collect(resume_from_cache=True)
    [entry] = json.loads(metrics_file(playground).read_text())
    assert entry["agent_metrics"]["min/reward"] == 0.25


def test_metrics_of_an_environment_are_computed_again(playground: Playground) -> None:
    app = playground.folder / "responses_api_agents" / "scripted" / "app.py"
    own = "return {'own': Path('own').read_text()}"
    app.write_text(f"{app.read_text()}\n    def compute_metrics(self, tasks):\n        {own}\n")
    for value in ("before", "after"):
        (playground.folder / "own").write_text(value)
        playground.collect(resume_from_cache=True)
        [entry] = json.loads(metrics_file(playground).read_text())
        assert entry["agent_metrics"]["own"] == value


@pytest.mark.parametrize("missing", [{"output"}, {"output", "materialized"}])
def test_without_an_earlier_run_the_missing_file_is_named_and_a_new_run_starts(
    playground: Playground, missing: set[str], capsys: Capture
) -> None:
    playground.collect()
    playground.played()
    for name in missing:
        Path(getattr(playground, name)).unlink()
    capsys.readouterr()
    assert len(playground.collect(resume_from_cache=True)) == 3
    assert playground.played() == ["0:0", "1:0", "2:0"]
    [message] = [line for line in capsys.readouterr().err.splitlines() if "Nothing to resume" in line]
    assert ("rollouts.jsonl" in message) == ("output" in missing)
    assert ("_materialized_inputs.jsonl" in message) == ("materialized" in missing)
    assert len(records_of(playground.output)) == 3


def test_first_run_accepts_the_resume_setting(playground: Playground) -> None:
    assert len(playground.collect(resume_from_cache=True)) == 3


def test_without_the_flag_all_files_of_the_earlier_run_are_set_aside(
    playground: Playground, capsys: Capture
) -> None:
    playground.set_response("1:0", NO_ROLLOUT)
    playground.collect()
    before = {path.read_bytes() for path in playground.output.parent.iterdir()}
    assert len(before) == 5
    playground.write_input(row("other"))
    capsys.readouterr()
    playground.collect()
    moved = set_aside_of(playground)
    assert {path.read_bytes() for path in moved} == before
    stderr = capsys.readouterr().err
    assert all(path.name in stderr for path in moved)
    assert len(records_of(playground.output)) == len(records_of(playground.materialized)) == 1
    assert not playground.failures.exists()
    playground.collect()
    assert len(set_aside_of(playground)) == 9


def spoil_last(text: str) -> str:
    return text[:-9]


TORN = "the line is incomplete or not JSON"
SPOILT: dict[str, tuple[Any, list[str], str]] = {
    "torn last line": (spoil_last, ["2:0"], f":3: {TORN}"),
    "torn line in the middle": (lambda text: text.replace("\n", "\n{half\n", 1), [], f":2: {TORN}"),
    "blank line": (lambda text: text.replace("\n", "\n\n", 1), [], f":2: {TORN}"),
    "line twice": (lambda text: text + text.splitlines()[0] + "\n", [], ":4: the line repeats rollout 0:0"),
    "line without a key": (lambda text: text + '{"reward": 1}\n', [], ":4: the line has no _ng_task_index"),
    "key that is not a number": (
        lambda text: text.replace('"_ng_task_index": 0', '"_ng_task_index": "0"', 1),
        ["0:0"],
        ":1: the line has no _ng_task_index",
    ),
    "key that is too large": (
        lambda text: text + '{"_ng_task_index": 99999999999999999999, "_ng_rollout_index": 0}\n',
        [],
        ":4: the line has no _ng_task_index",
    ),
    "line that is not an object": (lambda text: "[]\n" + text, [], ":1: the line has no _ng_task_index"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_bad_line_is_reported_with_its_number_and_set_aside(
    playground: Playground, capsys: Capture, kind: str
) -> None:
    spoil, run_again, expected = SPOILT[kind]
    playground.collect(num_samples_in_parallel=1)
    whole = playground.output.read_text()
    playground.output.write_text(spoil(whole))
    playground.played()
    capsys.readouterr()
    rollouts = playground.collect(resume_from_cache=True)
    assert playground.played() == run_again
    assert (
        sorted(keys_of(rollouts)) == sorted(keys_of(records_of(playground.output))) == ["0:0", "1:0", "2:0"]
    )
    assert f"rollouts.jsonl{expected}" in capsys.readouterr().err
    [kept] = set_aside_of(playground)
    assert kept.read_text().strip() in spoil(whole)
    assert len(kept.read_text().splitlines()) == 1


def test_complete_last_line_without_newline_is_kept(playground: Playground) -> None:
    playground.set_response("2:0", NO_ROLLOUT)
    playground.collect()
    playground.output.write_bytes(playground.output.read_bytes().removesuffix(b"\n"))
    playground.played()
    playground.reset_responses()
    playground.collect(resume_from_cache=True)
    assert playground.played() == ["2:0"]
    assert sorted(keys_of(records_of(playground.output))) == ["0:0", "1:0", "2:0"]
    assert set_aside_of(playground) == []


@pytest.mark.parametrize(
    ("most", "attempts", "times"),
    [(None, [2, 1, 0], "3 times"), ("1", [1, 0], "1 time"), ("5", [2, 2, 1, 0, 0], "5 times")],
)
def test_data_failures_are_attempted_a_limited_number_of_times_over_all_runs(
    playground: Playground,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    most: str | None,
    attempts: list[int],
    times: str,
) -> None:
    if most is not None:
        monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", most)
    playground.write_input(row("a"))
    playground.set_response("0:0", NO_ROLLOUT)
    for number, expected in enumerate(attempts):
        capsys.readouterr()
        assert list(playground.collect(resume_from_cache=True)) == []
        assert len(playground.played()) == expected, number
    assert f"Skipped 1 rollout: it failed {times} because of its input" in capsys.readouterr().err
    ledger = json.loads(playground.manifest.read_text())["ledger"]
    assert ledger == {
        "planned": 1,
        "succeeded": 0,
        "failed": {"data": 1},
        "not_run": 0,
        "cancelled": 0,
        "retried": 0,
    }


@pytest.mark.parametrize("failure_class", ["infrastructure", "timeout", "judge_failed"])
def test_infrastructure_failures_do_not_use_up_attempts(playground: Playground, failure_class: str) -> None:
    playground.write_input(row("a"))
    if failure_class == "infrastructure":
        playground.set_response("0:0", "{}", status=503)
    else:
        playground.set_response("0:0", _ng_failure_class=failure_class)
    for _ in range(5):
        playground.collect(resume_from_cache=True)
        assert playground.played()
    assert {one["_ng_failure_class"] for one in records_of(playground.failures)} == {failure_class}
    playground.reset_responses()
    assert len(playground.collect(resume_from_cache=True)) == 1


def test_terminal_failure_is_never_attempted_again(playground: Playground, capsys: Capture) -> None:
    playground.set_response("1:0", _ng_failure_class="unsafe", _ng_failure_terminal=True)
    playground.collect()
    assert playground.played() == ["0:0", "1:0", "2:0"]
    playground.reset_responses()
    playground.collect(resume_from_cache=True)
    assert playground.played() == []
    assert "Skipped 1 rollout" in capsys.readouterr().err


def test_rollout_with_no_persist_is_not_recorded_and_is_attempted_again(playground: Playground) -> None:
    playground.set_response("1:0", _ng_no_persist=True, _ng_failure_class="unlucky")
    for _ in range(4):
        assert keys_of(playground.collect(resume_from_cache=True)) == ["0:0", "2:0"]
        assert "1:0" in playground.played()
    assert not playground.failures.exists()
    ledger = json.loads(playground.manifest.read_text())["ledger"]
    assert (ledger["succeeded"], ledger["failed"], ledger["not_run"]) == (2, {}, 1)
    playground.reset_responses()
    assert len(playground.collect(resume_from_cache=True)) == 3


def test_failures_file_has_one_line_per_key_and_run(playground: Playground) -> None:
    playground.set_response("0:0", "{}", status=503)
    playground.set_response("1:0", "{}", status=503)
    for runs in (1, 2, 3):
        playground.collect(resume_from_cache=True)
        assert sorted(keys_of(records_of(playground.failures))) == sorted(["0:0", "1:0"] * runs)


def test_torn_failures_file_is_repaired(playground: Playground, capsys: Capture) -> None:
    playground.set_response("0:0", NO_ROLLOUT)
    playground.set_response("1:0", NO_ROLLOUT)
    playground.collect()
    whole = playground.failures.read_text()
    playground.failures.write_text("{half\n" + whole[:-5])
    playground.collect(resume_from_cache=True)
    stderr = capsys.readouterr().err
    assert f"_failures.jsonl:1: {TORN}" in stderr and f"_failures.jsonl:3: {TORN}" in stderr
    assert len(records_of(playground.failures)) == 3


CHANGES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an override": (
        {"responses_create_params": {"temperature": 0.5}},
        ["temperature: was not set, is 0.5", "3 rollouts"],
    ),
    "seeds": ({"num_repeats_add_seed": True}, ["seed: was not set, is 0"]),
    "the agent": ({"agent_name": "other"}, ["agent_ref.name: was 'scripted', is 'other'"]),
    "fewer rows": ({"limit": 2}, ["this plan lacks 1 rollout of the earlier plan"]),
    "a prompt": ({"prompt_config": "prompt.yaml", "input_jsonl_fpath": "bare.jsonl"}, ["input: was 'a'"]),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_changed_plan_is_refused_with_the_differences_and_changes_nothing(
    playground: Playground, kind: str
) -> None:
    playground.agents = ("scripted", "other")
    playground.__post_init__()
    write_files(
        playground.folder, {"prompt.yaml": "user: '{q}'", "bare.jsonl": '{"q": 1}\n{"q": 2}\n{"q": 3}\n'}
    )
    playground.collect()
    refuse(playground, *CHANGES[kind][1], **CHANGES[kind][0])


def refuse(
    playground: Playground, *expected: str, advice: str = "allow_changed_inputs=True", **settings: Any
) -> None:
    before = {path.name: path.read_bytes() for path in playground.output.parent.iterdir()}
    playground.played()
    with pytest.raises(ChangedInputsError) as refused:
        playground.collect(resume_from_cache=True, **settings)
    assert refused.value.exit_code == 2
    message = str(refused.value)
    assert all(text in message for text in expected), message
    assert advice in message
    assert {path.name: path.read_bytes() for path in playground.output.parent.iterdir()} == before
    assert playground.played() == []


def test_other_rows_are_refused(playground: Playground) -> None:
    playground.collect()
    playground.write_input(row("a"), row("changed"), row("c"))
    refuse(playground, "responses_create_params.input: was 'b', is 'changed' (rollout 1:0)")


def test_rows_in_another_order_are_refused(playground: Playground) -> None:
    playground.collect()
    playground.write_input(row("b"), row("a"), row("c"))
    refuse(playground, "was 'a', is 'b' (rollout 0:0)")


def test_fewer_repeats_are_refused(playground: Playground) -> None:
    playground.collect(num_repeats=3)
    refuse(playground, "this plan lacks 3 rollouts of the earlier plan", num_repeats=2)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"policy_model_name": "better"}, "openai_model: was 'some-model', is 'better'"),
        ({"scripted.responses_api_agents.scripted.style": "rude"}, "style: was not set, is 'rude'"),
    ],
)
def test_other_model_or_agent_setting_is_refused(
    playground: Playground, setting: dict[str, Any], expected: str
) -> None:
    playground.collect()
    playground.servers |= setting
    refuse(playground, expected)


def test_changes_are_accepted_with_allow_changed_inputs(playground: Playground, capsys: Capture) -> None:
    playground.set_response("2:0", NO_ROLLOUT)
    playground.collect()
    playground.played()
    playground.reset_responses()
    playground.servers["policy_model_name"] = "better"
    playground.write_input(row("a"), row("changed"), row("other"))
    rollouts = playground.collect(resume_from_cache=True, allow_changed_inputs=True)
    assert playground.played() == ["2:0"]
    assert [one["responses_create_params"]["input"] for one in rollouts] == ["a", "b", "other"]
    stderr = capsys.readouterr().err
    assert "is 'better'" in stderr and "is 'changed'" in stderr
    inputs = [one["responses_create_params"]["input"] for one in records_of(playground.materialized)]
    assert inputs == ["a", "b", "other"], "each as it was played"
    playground.collect(resume_from_cache=True)  # the new plan is accepted


def test_corrected_row_is_attempted_again_after_any_number_of_failures(
    playground: Playground, capsys: Capture
) -> None:
    playground.set_response("1:0", NO_ROLLOUT)
    playground.set_response("2:0", NO_ROLLOUT)
    playground.collect()
    playground.collect(resume_from_cache=True)  # uses up the attempts
    playground.played()
    playground.reset_responses()
    playground.write_input(row("a"), row("put right"), row("c"))
    playground.collect(resume_from_cache=True, allow_changed_inputs=True)
    assert playground.played() == ["1:0"]
    assert [one["_ng_task_index"] for one in records_of(playground.failures)] == [2, 2]
    assert "the line belongs to an input that has changed; it was moved to" in capsys.readouterr().err


def test_removed_agent_is_an_error_even_if_changes_are_accepted(playground: Playground) -> None:
    playground.set_response("1:0", NO_ROLLOUT)
    playground.collect()
    playground.played()
    write_agent(playground.folder, ["scripted2"])
    for path in (playground.folder / "nothing", playground.input):
        path.unlink(missing_ok=True)
        with pytest.raises(ValueError, match=r"no agent 'scripted' .* did you mean scripted2"):
            playground.collect(resume_from_cache=True, allow_changed_inputs=True)
    assert playground.played() == []


def test_settings_that_cannot_change_results_are_not_compared(playground: Playground) -> None:
    playground.set_response("2:0", NO_ROLLOUT)
    playground.collect()
    playground.reset_responses()
    playground.servers |= {
        "policy_base_url": "http://127.0.0.1:2/v1",
        "policy_api_key": "sk-another-one",
        "scripted.responses_api_agents.scripted.port": 12345,
        "scripted.responses_api_agents.scripted.num_workers": 2,
        "policy_model.responses_api_models.openai_model.max_concurrent_requests": 5,
        "use_absolute_ip": False,
    }
    rollouts = playground.collect(
        resume_from_cache=True,
        num_samples_in_parallel=1,
        max_attempts=3,
        rollout_timeout_s=100,
        disable_aggregation=True,
    )
    assert len(rollouts) == 3


def test_empty_key_may_be_set(playground: Playground) -> None:
    playground.servers["policy_api_key"] = ""
    playground.collect()
    playground.servers["policy_api_key"] = "sk-another-one"
    assert len(playground.collect(resume_from_cache=True)) == 3


def test_larger_limit_or_more_repeats_run_only_the_new_rollouts(playground: Playground) -> None:
    playground.collect(limit=1)
    playground.played()
    playground.collect(limit=2, resume_from_cache=True)
    assert playground.played() == ["1:0"]
    playground.collect(num_repeats=2, resume_from_cache=True)
    assert playground.played() == ["0:1", "1:1", "2:0", "2:1"]
    repeats = {"scripted": 3, "_default": 1}
    rollouts = playground.collect(num_repeats=repeats, resume_from_cache=True)
    assert playground.played() == ["0:2", "1:2", "2:2"]
    assert keys_of(rollouts) == [f"{task}:{rollout}" for task in range(3) for rollout in range(3)]
    assert len(records_of(playground.materialized)) == 9
    manifest = json.loads(playground.manifest.read_text())
    assert manifest["materialized_inputs"]["rollouts"] == 9
    assert len(manifest["resumed_at"]) == 3


def test_rows_appended_to_the_input_are_added_to_the_plan(playground: Playground) -> None:
    playground.collect()
    playground.played()
    playground.write_input(row("a"), row("b"), row("c"), row("d"))
    playground.collect(resume_from_cache=True)
    assert playground.played() == ["3:0"]


def test_run_is_resumed_without_its_input(playground: Playground, capsys: Capture) -> None:
    playground.set_response("1:0", NO_ROLLOUT)
    playground.collect()
    playground.played()
    playground.reset_responses()
    playground.input.unlink()
    assert len(playground.collect(resume_from_cache=True)) == 3
    assert playground.played() == ["1:0"]
    assert "input.jsonl: not found; continuing with" in capsys.readouterr().err


def test_changed_overrides_are_detected_without_the_input(playground: Playground) -> None:
    playground.collect()
    playground.input.unlink()
    other = {"responses_create_params": {"top_p": 1}}
    for is_allowed in (False, True):  # a new plan needs the input
        refuse(
            playground,
            "responses_create_params.top_p: was not set, is 1",
            advice="Put the file back",
            allow_changed_inputs=is_allowed,
            **other,
        )
        refuse(
            playground,
            "num_repeats: was 1, is 2",
            advice="Put the file back",
            allow_changed_inputs=is_allowed,
            num_repeats=2,
        )


def test_plan_is_compared_if_the_manifest_is_lost(playground: Playground) -> None:
    playground.collect()
    playground.manifest.unlink()
    assert len(playground.collect(resume_from_cache=True)) == 3
    playground.manifest.write_text("{half")
    playground.write_input(row("a"), row("changed"), row("c"))
    refuse(playground, "is 'changed'")
