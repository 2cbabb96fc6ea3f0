"""The tasks of the examples: reproducible by seed, with separate held-out tasks and strict rewards."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.grpo.command import Variant, main
from examples.grpo.copying import VARIANT
from examples.grpo.questions import datum, questions
from examples.grpo.reporting import Evaluation, RunReport, smoothed
from examples.grpo.words import CopyingEnvironment, is_copy, prompt, words
from nemo_gym.errors import ConfigError

pytestmark = pytest.mark.torch


def test_held_out_words_are_never_trained_on() -> None:
    chosen = words(3, training=400, heldout=100)
    assert len({*chosen.training, *chosen.heldout}) == 500
    assert chosen == words(3, training=400, heldout=100)
    assert chosen != words(4, training=400, heldout=100)


def test_held_out_questions_are_never_trained_on() -> None:
    chosen = questions(3, training=400, heldout=100)
    assert len({question.text for question in chosen.training + chosen.heldout}) == 500
    assert chosen == questions(3, training=400, heldout=100)


@pytest.mark.parametrize("choose", [words, questions])
def test_request_for_more_tasks_than_exist_is_an_error(choose: Any) -> None:
    with pytest.raises(ConfigError, match="use fewer steps"):
        choose(0, training=100_000, heldout=100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--group-size", "1"], "--group-size 1: must be at least 2"),
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--learning-rate", "nan"], "--learning-rate nan: must be a finite number above 0"),
        (["--threads", "0"], "--threads 0: must be at least 1"),
        (["--seeds", "1", "1"], "--seeds 1 1: a seed is repeated"),
        (["--output", __file__], "cannot write to this folder"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = [] if "--output" in arguments else ["--output", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main(unplayable(), [*arguments, *output])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def unplayable() -> Variant:
    async def play(*_: Any) -> None:
        raise AssertionError("no rollout may be played")

    return replace(VARIANT, play=play)


def interrupted() -> Variant:
    async def play(plan: Any, settings: Any, report: RunReport, on_progress: Any) -> None:
        report.before = Evaluation([[0.0], [1.0]], [0])
        on_progress(report)
        raise KeyboardInterrupt

    return replace(VARIANT, play=play)


def test_interrupted_run_names_its_results_and_keeps_those_of_the_previous_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "metrics.json").write_text("earlier")
    with pytest.raises(SystemExit) as ended:
        main(interrupted(), ["--smoke", "--output", str(tmp_path)])
    assert ended.value.code == 130
    assert capsys.readouterr().err == f"Interrupted; the results so far are in {tmp_path}/metrics.json\n"
    assert json.loads((tmp_path / "metrics.json").read_text())["runs"][0]["heldout"]["before"]["mean"] == 0.5
    assert [path.read_text() for path in tmp_path.glob("metrics.2*.json")] == ["earlier"]


def test_expected_answers_of_questions_are_correct() -> None:
    for question in questions(0, training=100, heldout=0).training:
        assert eval(question.expression) == question.answer
        assert str(datum(question, 0)["extra_env_info"]["expected_answer"]) == str(question.answer)


def test_worked_examples_are_not_among_the_questions() -> None:
    shown = datum(questions(0, training=1, heldout=0).training[0], 0)["extra_env_info"]
    texts = [
        item["content"] for item in shown["responses_create_params"]["input"] if item.get("role") == "user"
    ]
    asked = {question.text for question in questions(0, training=2000, heldout=0).training}
    assert not asked & set(texts[:-1])


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        (" zovo\n", True),
        (" zovo\n\nWord: kunor", True),
        ("zovo\n", True),
        (" zovo", False),
        (" zovo zovo\n", False),
        (" Zovo\n", False),
        (" zovo.\n", False),
        ("\n zovo\n", False),
    ],
)
def test_copy_must_be_the_only_word_on_a_complete_line(answer: str, is_right: bool) -> None:
    assert is_copy(answer, "zovo") is is_right


def test_copying_ends_after_one_turn() -> None:
    logs = [[{"role": "user", "content": prompt("zovo")}, {"role": "assistant", "content": " zovo\n"}]] * 2
    step = CopyingEnvironment().step(logs, [{"word": "zovo"}, {"word": "kunor"}])
    assert torch.equal(step.rewards, torch.tensor([1.0, 0.0]))
    assert step.terminateds.all()


def test_differences_are_paired_by_task() -> None:
    run = RunReport(seed=0)
    run.before = Evaluation([[0.0, 1.0], [0.0, 0.0]], [0])
    run.after = Evaluation([[1.0, 1.0], [0.0, 1.0]], [2])
    assert run.differences == [0.5, 0.5]
    assert run.as_json()["heldout"]["after"]["mean"] == 0.75


def test_smoothing_does_not_change_a_constant() -> None:
    assert smoothed([0.5, 0.5, 0.5]) == pytest.approx([0.5, 0.5, 0.5])
