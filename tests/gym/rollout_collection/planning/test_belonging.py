"""A resumed run keeps only rollouts that belong to its plan, and plans again if only the plan is lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollout_collection.planning.belonging import strays
from nemo_gym.rollout_collection.recording.scan import scan
from tests.support.scripted_agent import Playground, keys_of, records_of, row, write_agent

Capture = pytest.CaptureFixture[str]


def files_of(playground: Playground) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in playground.output.parent.iterdir() if path.is_file()}


def refused(playground: Playground, **settings: Any) -> str:
    """The message of a resume that is refused and changes no file."""
    before = files_of(playground)
    playground.played()
    with pytest.raises(ConfigError) as error:
        playground.collect(resume_from_cache=True, **settings)
    assert files_of(playground) == before and playground.played() == []
    assert error.value.exit_code == 2
    return str(error.value)


def change_line(playground: Playground, number: int, **fields: Any) -> None:
    lines = records_of(playground.output)
    lines[number - 1] |= fields
    playground.output.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_rollout_of_another_task_is_refused_with_its_line_and_what_differs(playground: Playground) -> None:
    playground.collect(num_samples_in_parallel=1)
    change_line(playground, 2, responses_create_params={"input": "other"})
    message = refused(playground)
    assert "out/rollouts.jsonl has 1 rollout that this run did not plan" in message
    assert "line 2: rollout 1:0 differs from the plan: input: was 'other', is 'b'" in message
    assert "No file was changed" in message and "allow_changed_inputs=True" in message


def test_change_that_keeps_the_size_is_noticed_in_a_complete_output(playground: Playground) -> None:
    playground.collect(num_samples_in_parallel=1)
    playground.collect(resume_from_cache=True)
    text = playground.output.read_text()
    playground.output.write_text(text.replace('"input": "b"', '"input": "x"'))
    assert "line 2: rollout 1:0 differs from the plan: input: was 'x', is 'b'" in refused(playground)


def test_dry_run_reports_foreign_rollouts(playground: Playground) -> None:
    playground.collect(num_samples_in_parallel=1)
    change_line(playground, 2, responses_create_params={"input": "other"})
    message = refused(playground, dry_run=True)
    assert "1 recorded rollout that the earlier run did not plan" in message


def test_dry_run_counts_what_is_done_without_a_plan(playground: Playground, capsys: Capture) -> None:
    playground.collect()
    spoil(playground.materialized, "torn")
    playground.collect(resume_from_cache=True, dry_run=True)
    assert "3 rollouts planned, 3 done, 0 skipped, 0 remaining" in capsys.readouterr().err


def test_rollout_of_another_agent_is_refused(playground: Playground) -> None:
    playground.collect(num_samples_in_parallel=1)
    change_line(playground, 3, agent_ref={"name": "stranger"})
    assert "line 3: rollout 2:0 differs from the plan: agent: was 'stranger', is 'scripted'" in refused(
        playground
    )


def test_rollout_with_a_key_outside_the_plan_is_refused(playground: Playground) -> None:
    playground.collect(num_samples_in_parallel=1)
    change_line(playground, 1, _ng_task_index=7)
    assert "line 1: rollout 7:0 is not in the plan" in refused(playground)


def test_output_of_another_run_is_refused_before_a_torn_line_is_repaired(playground: Playground) -> None:
    playground.collect()
    mine = playground.output.with_suffix(".mine")
    playground.output.rename(mine)
    playground.write_input(row("d"), row("e"), row("f"))
    playground.collect()
    playground.output.write_bytes(mine.read_bytes() + b'{"torn')
    message = refused(playground)
    assert "has 3 rollouts" in message and "line 3: " in message


def test_accepted_rollouts_are_not_refused_again(playground: Playground, capsys: Capture) -> None:
    playground.collect(num_samples_in_parallel=1)
    change_line(playground, 2, responses_create_params={"input": "other"})
    assert len(playground.collect(resume_from_cache=True, allow_changed_inputs=True)) == 3
    assert "they are kept:\n  line 2" in capsys.readouterr().err
    assert len(playground.collect(resume_from_cache=True)) == 3
    change_line(playground, 3, responses_create_params={"input": "other"})
    assert "has 2 rollouts" in refused(playground)


def test_rollouts_of_an_accepted_smaller_plan_are_not_refused_again(playground: Playground) -> None:
    playground.collect()
    assert len(playground.collect(resume_from_cache=True, limit=2, allow_changed_inputs=True)) == 3
    assert len(playground.collect(resume_from_cache=True, limit=2)) == 3


@pytest.mark.parametrize(
    "recorded",
    [
        None,
        {},
        {"input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "b"}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "b"}]}], "temperature": 1.0},
    ],
)
def test_agent_may_add_to_the_input_that_it_records(playground: Playground, recorded: Any) -> None:
    playground.set_response("1:0", responses_create_params=recorded)
    playground.collect()
    playground.played()
    assert len(playground.collect(resume_from_cache=True)) == 3
    assert playground.played() == []


MESSAGES = [
    [{"role": "user", "content": "one"}],
    [{"role": "system", "content": "one"}, {"role": "user", "content": "two"}],
    [{"role": "system", "content": 'ends like a list: "}]'}, {"role": "user", "content": "three"}],
    [
        {"role": "system", "content": [{"type": "input_text", "text": "one"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "four"}]},
    ],
    "one",
    'two ü \ud83d\ude00 \\ "',
    [],
]


@pytest.mark.parametrize("is_compact", [True, False])
def test_only_the_same_input_belongs(tmp_path: Path, is_compact: bool) -> None:
    """For every pair of inputs: the plan has one, the output the other."""
    separators = (",", ":") if is_compact else None

    def written(name: str, inputs: list[Any]) -> Path:
        path = tmp_path / name
        rows = (
            {
                "agent_ref": {"name": "a"},
                "responses_create_params": {"tools": [{"parameters": {"input": [{}]}}], "input": one},
                "reward": 1.0,
                "_ng_task_index": number,
                "_ng_rollout_index": 0,
            }
            for number, one in enumerate(inputs)
        )
        path.write_text("".join(json.dumps(one, separators=separators) + "\n" for one in rows))
        return path

    pairs = [(planned, recorded) for planned in MESSAGES for recorded in MESSAGES]
    plan = written("plan", [planned for planned, _ in pairs])
    output = written("output", [recorded for _, recorded in pairs])
    found = scan(output)
    assert found is not None
    lines = output.read_bytes().splitlines(keepends=True)
    offsets = [sum(map(len, lines[:number])) for number in range(len(lines))]
    differing = [
        offset
        for offset, (planned, recorded) in zip(offsets, pairs, strict=True)
        if not texts(planned) <= texts(recorded)
    ]
    assert [stray.offset for stray in strays(output, found.index, plan)] == differing
    assert len(differing) > 20


def texts(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value}
    if isinstance(value, list):
        return set().union(*map(texts, value))
    return texts(value.get("content", value.get("text")))


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "shorter", "binary", "a list", "folder"])
@pytest.mark.parametrize("has_manifest", [True, False])
def test_lost_plan_is_made_again_and_the_output_kept(
    playground: Playground, capsys: Capture, damage: str, has_manifest: bool
) -> None:
    playground.set_response("1:0", "[]")
    playground.collect()
    playground.reset_responses()
    playground.played()
    good = playground.materialized.read_bytes()
    spoil(playground.materialized, damage)
    if not has_manifest:
        playground.manifest.unlink()
    rollouts = playground.collect(resume_from_cache=True)
    assert playground.played() == ["1:0"] and keys_of(rollouts) == ["0:0", "1:0", "2:0"]
    assert playground.materialized.read_bytes() == good
    shown = capsys.readouterr().err
    if has_manifest or damage not in ("shorter", "empty"):
        assert "planned again from input.jsonl" in shown
    playground.collect(resume_from_cache=True)
    assert "planned again" not in capsys.readouterr().err


def spoil(path: Path, damage: str) -> None:
    whole = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        first = whole.splitlines(keepends=True)[0]
        others = {"empty": b"", "torn": whole[:-20], "shorter": first, "a list": b"[1]\n" + whole}
        path.write_bytes(others.get(damage, b"\xff\x00" * 99))


def test_lost_plan_without_the_input_is_refused(playground: Playground) -> None:
    playground.collect()
    for damage in ("torn", "missing"):
        if playground.materialized.exists():
            spoil(playground.materialized, damage)
        playground.input.rename("elsewhere")
        message = refused(playground)
        assert "out/rollouts_materialized_inputs.jsonl" in message and "put either file back" in message
        Path("elsewhere").rename(playground.input)


def test_lost_plan_that_cannot_be_made_again_is_refused(playground: Playground) -> None:
    playground.collect()
    playground.materialized.unlink()
    playground.write_input(row("a"), row("changed"), row("c"))
    assert "line 2: rollout 1:0 differs from the plan: input: was 'b', is 'changed'" in refused(playground)
    playground.write_input(row("a"), row("b"))
    assert "line 3: rollout 2:0 is not in the plan" in refused(playground)
    playground.write_input(row("a"), row("b"), row("c"))
    playground.servers["policy_model_name"] = "better"
    assert "is 'better'" in refused(playground)


REFUSALS: dict[str, dict[str, Any]] = {
    "bad row": {"input_jsonl_fpath": "bad.jsonl"},
    "unknown agent": {"agent_name": "nobody"},
    "missing prompt": {"prompt_config": "nowhere.yaml"},
    "repeats of an unknown agent": {"num_repeats": {"nobody": 1}},
}


@pytest.mark.parametrize("kind", REFUSALS)
@pytest.mark.parametrize("resume", [False, True])
def test_refusal_comes_before_an_earlier_run_is_renamed(
    playground: Playground, kind: str, resume: bool
) -> None:
    Path("bad.jsonl").write_text('{"responses_create_params": {}}\nnot JSON\n')
    playground.collect(num_samples_in_parallel=1)
    playground.output.write_bytes(playground.output.read_bytes()[:-5])  # torn
    before = files_of(playground)
    with pytest.raises((ConfigError, ValueError)):
        playground.collect(resume_from_cache=resume, **REFUSALS[kind])
    assert files_of(playground) == before


def test_agent_that_is_gone_is_refused_before_a_torn_line_is_set_aside(playground: Playground) -> None:
    playground.collect()
    playground.output.write_bytes(playground.output.read_bytes()[:-5])
    write_agent(playground.folder, ["scripted2"])
    before = files_of(playground)
    for _ in range(2):
        with pytest.raises(ValueError, match="no agent 'scripted'"):
            playground.collect(resume_from_cache=True, allow_changed_inputs=True)
        assert files_of(playground) == before
        playground.input.unlink(missing_ok=True)
