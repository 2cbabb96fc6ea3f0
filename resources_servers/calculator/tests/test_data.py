import json
from pathlib import Path

from nemo_gym.base_resources_server import BaseRunRequest
from resources_servers.calculator.arithmetic import evaluate, format_number
from resources_servers.calculator.data import generate

EXAMPLES = Path(__file__).parents[1] / "data" / "example.jsonl"
FEW_SHOT = EXAMPLES.with_name("few_shot.jsonl")


def test_example_files_are_up_to_date() -> None:
    assert EXAMPLES.read_text(encoding="utf-8") == generate.example_jsonl()
    assert FEW_SHOT.read_text(encoding="utf-8") == generate.few_shot_jsonl()


def test_few_shot_rows_have_three_correct_worked_examples() -> None:
    for line in FEW_SHOT.read_text(encoding="utf-8").splitlines():
        params = BaseRunRequest.model_validate_json(line).responses_create_params
        assert len(params.input) == 2 + 4 * 3
        assert params.temperature == 1.0
    for problem in (*generate.WORKED, *generate.FEW_SHOT):
        assert format_number(evaluate(problem.expression)) == str(problem.answer), problem.question


def test_there_are_200_different_rows_in_a_fixed_order() -> None:
    rows = [json.loads(line) for line in EXAMPLES.read_text(encoding="utf-8").splitlines()]
    questions = [row["responses_create_params"]["input"][-1]["content"] for row in rows]
    assert len(set(questions)) == len(rows) == 200
    assert questions[:2] == ["What is 15% of 240?", "What is 47 \u00d7 23?"]
    assert [row["expected_answer"] for row in rows[:2]] == ["36", "1081"]


def test_rows_are_requests_with_the_calculator() -> None:
    for line in EXAMPLES.read_text(encoding="utf-8").splitlines():
        params = BaseRunRequest.model_validate_json(line).responses_create_params
        assert params.tools is not None
        assert [tool["name"] for tool in params.tools] == ["calculator"]


def test_the_calculator_agrees_with_every_expected_answer() -> None:
    for problem in generate.problems():
        assert format_number(evaluate(problem.expression)) == str(problem.answer), problem.question
