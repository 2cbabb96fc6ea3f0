"""The end of a run on a real terminal: everything that matters is on one screen."""

import json
import math
from typing import Any

import pytest

from nemo_gym.text_fit import cut, shortened, width_of, wrapped
from tests.support.pseudo_terminal import LINES, Shown, run_on_terminal
from tests.support.scripted_agent import MODEL, MODEL_CONFIG, Playground, row

FILES = ("Materialized inputs: ", "Rollouts: ", "Failures: ", "Aggregate metrics: ", "Manifest: ")


def collect(playground: Playground, columns: int, *more: str, agent: str = "scripted") -> Shown:
    return run_on_terminal(
        "ng_collect_rollouts",
        f"+config_paths=[responses_api_agents/scripted/configs/scripted.yaml,{MODEL_CONFIG}]",
        *(f"+{name}={value}" for name, value in MODEL.items()),
        "+hosting=embedded",
        f"+agent_name={agent}",
        "+input_jsonl_fpath=input.jsonl",
        "+output_jsonl_fpath=out/rollouts.jsonl",
        "+retry_backoff_s=0",
        *more,
        cwd=playground.folder,
        columns=columns,
    )


def rollout(number: int) -> dict[str, Any]:
    usage = {
        "input_tokens": 1_000 + number,
        "output_tokens": 37 * number,
        "total_tokens": 1_000 + 38 * number,
    }
    return {"reward": float(number % 3 == 0), "steps": 3, "response": {"output": [], "usage": usage}}


def heights(lines: list[str], columns: int) -> int:
    return sum(max(1, math.ceil(width_of(line) / columns)) for line in lines)


def test_end_screen_fits_30_lines_and_80_columns(playground: Playground) -> None:
    playground.write_input(*(row(str(number)) for number in range(8)))
    for number in range(32):
        playground.set_response(f"{number // 4}:{number % 4}", **rollout(number))
    playground.set_response("7:3", "a refusal", status=400)
    shown = collect(playground, 80, "+num_repeats=4")
    assert shown.code == 1
    lines = shown.lines_from("Key metrics of scripted:")
    assert heights(lines, 80) <= LINES and max(map(width_of, lines)) <= 80, shown.text
    text = "\n".join(lines)
    assert set(json.loads(text[text.index("{") : text.index("}") + 1])) == {
        f"mean/{name}" for name in ("reward", "steps", "input_tokens", "output_tokens", "total_tokens")
    }
    for part in ("mean/reward    ", "rewards  0 ", "pass@k  1 ", "  1 x data: ", " rollouts/min", *FILES):
        assert part in text, part
    assert "/min, tokens 31.5k in (" in " ".join(text.split()) and "k out" in text
    assert "95 % CI" in text and "mean/reward/ci95_low" not in text


@pytest.mark.parametrize("columns", [80, 60])
def test_end_screen_fits_with_long_names_many_metrics_and_many_causes(
    playground: Playground, columns: int
) -> None:
    agent = "the_agent_with_the_long_name_that_plays_every_row_of_the_input_until_the_very_end"
    other = Playground(playground.folder, agents=(agent,))
    other.write_input(*(row(str(number)) for number in range(24)))
    for number in range(24):
        many = {f"number_of_things_that_this_environment_has_counted_{n}": number * n for n in range(40)}
        other.set_response(f"{number}:0", **rollout(number) | many | {"reward": number / 24})
    for number, name in enumerate(["apples", "pears", "plums", "figs", "dates", "kiwis", "limes"]):
        other.set_response(f"{number}:0", f"the {name} are off " * 50, status=400)
    shown = collect(other, columns, agent=agent)
    lines = shown.lines_from("}")[1:]
    assert lines[0].startswith("the_agent_with") and "…" in lines[0]
    wide = [line for line in lines if width_of(line) > columns and not line.startswith(FILES)]
    assert not wide and heights(lines, columns) <= LINES, shown.text
    text = "\n".join(lines)
    for part in ("mean/reward", "  1 x data: ", " rollouts/min", "rewards ", *FILES):
        assert part in text, part
    assert "more, in the aggregate metrics" in text and "  and 2 other causes" in text
    assert "median" in text if columns == 80 else "95 % CI" in text


def test_names_are_shortened_in_the_middle_and_texts_at_the_end() -> None:
    assert shortened("mean/number_of_calls", 11) == "mean/…calls"
    assert shortened("mean/reward", 11) == "mean/reward"
    assert shortened("数数数数数数", 7) == "数…数" or width_of(shortened("数数数数数数", 7)) <= 7
    assert cut("数数数", 5) == "数数…" and cut("abc", 3) == "abc"
    assert wrapped("one two three four", 10) == ["one two", "  three", "  four"]
    assert wrapped("tasks, 100 % of them", 11) == ["tasks,", "  100 % of", "  them"]
