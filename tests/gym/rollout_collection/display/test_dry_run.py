"""The output of a dry run, and that a dry run changes nothing."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config import component_roots
from nemo_gym.config.current import global_config_dict
from nemo_gym.config.plain_data import frozen_dictconfig
from nemo_gym.errors import ChangedInputsError, ConfigError
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.rollout_collection.collection_policy import CollectionPolicy
from nemo_gym.rollout_collection.display.dry_run import dry_run
from nemo_gym.rollout_collection.run_servers import Servers
from tests.support.commands import free_port
from tests.support.scripted_agent import Playground, row

Capture = pytest.CaptureFixture[str]


def dry_run_text(
    playground: Playground, servers: Servers | None = None, max_attempts: int = 3, **settings: Any
) -> str:
    policy = CollectionPolicy(component_roots(), max_attempts)
    return "\n".join(dry_run(playground.config(dry_run=True, **settings), servers, policy))


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and modification time of every file."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


AGENTS = Servers({"scripted": {"responses_api_agents": {"scripted": {"entrypoint": "app.py"}}}})


def test_agents_are_checked_if_servers_are_known(playground: Playground) -> None:
    assert "checked" not in dry_run_text(playground, AGENTS)
    with pytest.raises(ConfigError, match=r"no agent 'scripte' among the servers.*did you mean scripted"):
        dry_run_text(playground, AGENTS, agent_name="scripte")


def test_without_servers_dry_run_says_that_agents_were_not_checked(playground: Playground) -> None:
    text = dry_run_text(playground, None, agent_name="unknown")
    assert "unknown: 3 rollouts" in text
    assert "The agents were not checked: no servers are configured" in text


def test_dry_run_refuses_an_output_that_a_run_refuses(playground: Playground) -> None:
    before = content(playground.folder)
    for output, problem in (
        (playground.input, "is one of the files that a run with the output"),
        (playground.folder, "is a folder or a device"),
        (playground.input / "below" / "out.jsonl", "is not a folder"),
    ):
        with pytest.raises(ConfigError, match=problem):
            dry_run_text(playground, AGENTS, output_jsonl_fpath=str(output))
    dry_run_text(
        playground, AGENTS, output_jsonl_fpath=str(playground.folder / "new" / "folder" / "out.jsonl")
    )
    assert content(playground.folder) == before and not (playground.folder / "new").exists()


def test_repeats_of_unused_agents_cause_a_warning(playground: Playground) -> None:
    text = dry_run_text(playground, num_repeats={"scripted": 2, "absent": 3})
    assert "warning: num_repeats has entries for agents that do not occur: absent" in text


def test_tokens_are_those_of_all_rows(playground: Playground) -> None:
    playground.write_input(row("x" * 4_000), *(row("y" * 36_000, n=number) for number in range(3)))
    [tokens] = re.findall(r"About ([\d,]+) input tokens", dry_run_text(playground, num_repeats=2))
    assert int(tokens.replace(",", "")) == pytest.approx(2 * (1_000 + 3 * 9_000), rel=0.01)


def test_most_output_tokens_are_shown_if_every_row_has_a_limit(playground: Playground) -> None:
    bounded = [
        {"responses_create_params": {"input": "a", "max_output_tokens": bound}} for bound in (100, 1_000)
    ]
    playground.write_input(*bounded)
    assert "at most 2,200 output tokens in total" in dry_run_text(playground, num_repeats=2)
    playground.write_input(*bounded, row("b"))
    assert "output tokens" not in dry_run_text(playground)


def test_resumed_dry_run_counts_done_skipped_and_remaining_rollouts_and_repairs_nothing(
    playground: Playground,
) -> None:
    playground.set_response("1:0", _ng_failure_class="hopeless", _ng_failure_terminal=True)
    playground.set_response("2:0", "down", status=503)
    playground.collect(num_repeats=2)
    with playground.output.open("ab") as file:
        file.write(b'{"_ng_task_index": 2, "_ng_rollout_index": 0, "torn')
    with playground.failures.open("ab") as file:
        file.write(b"torn")
    before = content(playground.folder)
    text = dry_run_text(playground, num_repeats=2, resume_from_cache=True)
    assert "Resuming: 6 rollouts planned, 4 done, 1 skipped, 1 remaining" in text
    assert content(playground.folder) == before
    playground.reset_responses()
    playground.played()
    assert len(playground.collect(num_repeats=2, resume_from_cache=True)) == 5
    assert playground.played() == ["2:0"]


def test_rollouts_whose_attempts_are_spent_are_skipped(
    playground: Playground, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    playground.set_response("1:0", '{"reward": null}')
    playground.collect()
    assert "2 done, 0 skipped, 1 remaining" in dry_run_text(playground, resume_from_cache=True)
    assert "2 done, 1 skipped, 0 remaining" in dry_run_text(
        playground, max_attempts=1, resume_from_cache=True
    )
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "1")
    playground.collect(resume_from_cache=True, dry_run=True)
    assert "2 done, 1 skipped, 0 remaining" in capsys.readouterr().err


def test_corrected_row_whose_attempts_are_spent_remains_to_be_played(playground: Playground) -> None:
    playground.set_response("1:0", '{"reward": null}')
    playground.set_response("2:0", '{"reward": null}')
    playground.collect()
    playground.write_input(row("a"), row("corrected"), row("c"))
    text = dry_run_text(playground, max_attempts=1, resume_from_cache=True, allow_changed_inputs=True)
    assert "1 done, 1 skipped, 1 remaining" in text
    assert "1 rollout with different inputs" in text


def test_counts_of_a_larger_plan_include_new_rollouts(playground: Playground) -> None:
    playground.collect(limit=2)
    text = dry_run_text(playground, num_repeats=2, resume_from_cache=True)
    assert "Resuming: 6 rollouts planned, 2 done, 0 skipped, 4 remaining" in text


def test_resume_without_the_input_uses_the_earlier_plan(playground: Playground) -> None:
    playground.set_response("1:0", "down", status=503)
    playground.collect(num_repeats=2)
    playground.input.unlink()
    before = content(playground.folder)
    text = dry_run_text(playground, num_repeats=2, resume_from_cache=True)
    assert "input.jsonl: not found; continuing with" in text
    assert "Dry run: 3 rows, 6 rollouts" in text
    assert "Resuming: 6 rollouts planned, 5 done, 0 skipped, 1 remaining" in text
    with pytest.raises(ChangedInputsError, match="not found; it is needed because the plan has changed"):
        dry_run_text(playground, num_repeats=3, resume_from_cache=True)
    assert content(playground.folder) == before


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"responses_create_params": {"temperature": 0.3}}, "2 rollouts with different inputs"),
    ({"limit": 1}, "this plan lacks 1 rollout of the earlier plan"),
]


@pytest.mark.parametrize(("settings", "change"), CHANGES)
def test_resume_that_a_run_would_refuse_is_refused(
    playground: Playground, settings: dict[str, Any], change: str
) -> None:
    playground.collect(limit=2)
    settings = {"limit": 2, "resume_from_cache": True, **settings}
    with pytest.raises(ChangedInputsError, match=change):
        dry_run_text(playground, **settings)
    assert change in dry_run_text(playground, allow_changed_inputs=True, **settings)


def test_resume_with_other_servers_is_refused(playground: Playground) -> None:
    playground.collect()
    with pytest.raises(ChangedInputsError, match="openai_model: was 'some-model', is not set"):
        dry_run_text(playground, AGENTS, resume_from_cache=True)


def test_nothing_to_resume_is_reported_with_the_missing_file(playground: Playground) -> None:
    text = dry_run_text(playground, resume_from_cache=True)
    missing = "out/rollouts_materialized_inputs.jsonl and out/rollouts.jsonl"
    assert f"Nothing to resume: {missing} not found" in text
    assert "Resuming" not in text


def test_without_the_flag_an_earlier_run_does_not_count(playground: Playground) -> None:
    playground.collect()
    before = content(playground.folder)
    assert "Resuming" not in dry_run_text(playground)
    assert content(playground.folder) == before


def test_dry_run_from_python_prints_the_same_and_returns_nothing(
    playground: Playground, capsys: Capture
) -> None:
    expected = dry_run_text(playground, AGENTS, num_repeats=2)
    assert playground.collect(num_repeats=2, dry_run=True) == []
    assert capsys.readouterr().err == expected + "\n"
    assert playground.played() == [] and not playground.output.parent.exists()
    with pytest.raises(ConfigError, match="did you mean scripted"):
        playground.collect(agent_name="scripte", dry_run=True)


def test_dry_run_from_python_needs_no_servers(playground: Playground, capsys: Capture) -> None:
    head = {"host": "127.0.0.1", "port": free_port()}
    with global_config_dict(frozen_dictconfig({"head_server": head})):
        asyncio.run(RolloutCollectionHelper().run_from_config(playground.config(dry_run=True)))
    assert "The agents were not checked" in capsys.readouterr().err


def test_sample_is_the_first_row_without_secrets(playground: Playground) -> None:
    text = dry_run_text(playground, responses_create_params={"api_key": "sk-secret-1234567890"})
    sample = json.loads(text[text.index("{") : text.rindex("}") + 1])
    assert sample["responses_create_params"]["input"] == "a"
    assert "sk-secret" not in text


def test_misspelt_parameter_is_reported(playground: Playground) -> None:
    assert "did you mean temperature?" in dry_run_text(
        playground, responses_create_params={"temprature": 0.7}
    )
