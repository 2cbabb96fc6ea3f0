"""Writes example.jsonl (200 questions, the same on every run) and few_shot.jsonl (8, with worked examples).

python -m resources_servers.calculator.data.generate
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

NUM_ROWS = 200
SEED = 20_240

SYSTEM = "Use the calculator for the arithmetic. Then answer in one sentence that ends with the number."
CALCULATOR = {
    "type": "function",
    "name": "calculator",
    "description": "Evaluate an arithmetic expression.",
    "parameters": {
        "type": "object",
        "properties": {
            "expression": {
                "type": "string",
                "description": "Numbers, parentheses and + - * / // % **, for example 240 * 0.15",
            }
        },
        "required": ["expression"],
        "additionalProperties": False,
    },
    "strict": True,
}


@dataclass(frozen=True)
class Problem:
    question: str
    expression: str
    """The expression of a correct call of the calculator."""
    answer: int


FIRST = (
    Problem("What is 15% of 240?", "240 * 0.15", 36),
    Problem("What is 47 \u00d7 23?", "47 * 23", 1081),
)


def plus(random: Random) -> Problem:
    a, b = random.randint(10, 9_999), random.randint(10, 9_999)
    return Problem(f"What is {a:,} + {b:,}?", f"{a} + {b}", a + b)


def minus(random: Random) -> Problem:
    a, b = random.randint(10, 5_000), random.randint(10, 5_000)
    return Problem(f"What is {a:,} \u2212 {b:,}?", f"{a} - {b}", a - b)


def times(random: Random) -> Problem:
    a, b = random.randint(11, 199), random.randint(11, 99)
    return Problem(f"What is {a} \u00d7 {b}?", f"{a} * {b}", a * b)


def percent(random: Random) -> Problem:
    rate, base = 5 * random.randint(1, 19), 20 * random.randint(2, 60)
    return Problem(f"What is {rate}% of {base:,}?", f"{base} * {rate} / 100", base * rate // 100)


def division(random: Random) -> Problem:
    divisor, quotient = random.randint(3, 60), random.randint(11, 250)
    dividend = divisor * quotient
    return Problem(f"What is {dividend:,} \u00f7 {divisor}?", f"{dividend} / {divisor}", quotient)


def purchase(random: Random) -> Problem:
    count, price, delivery = random.randint(3, 48), random.randint(4, 95), random.randint(5, 40)
    question = (
        f"{count} books cost ${price} each, and delivery costs ${delivery}. What is the total in dollars?"
    )
    return Problem(question, f"{count} * {price} + {delivery}", count * price + delivery)


def sharing(random: Random) -> Problem:
    people, share, gone = random.randint(3, 25), random.randint(6, 80), random.randint(5, 90)
    start = people * share + gone
    question = (
        f"Of {start:,} stickers {gone} are lost and {people} children share the rest equally. "
        "How many does each child get?"
    )
    return Problem(question, f"({start} - {gone}) / {people}", share)


WORKED = (
    Problem("What is 12 + 30?", "12 + 30", 42),
    Problem("What is 7 \u00d7 8?", "7 * 8", 56),
    Problem("What is 90 \u2212 45?", "90 - 45", 45),
)
"""Examples in the prompt: a small model needs three to learn how a tool is called."""

FEW_SHOT = (
    Problem("What is 14 + 28?", "14 + 28", 42),
    Problem("What is 47 \u00d7 23?", "47 * 23", 1081),
    Problem("What is 384 \u2212 129?", "384 - 129", 255),
    Problem("What is 600 \u2212 88?", "600 - 88", 512),
    Problem("What is 1250 + 375?", "1250 + 375", 1625),
    Problem("What is 81 + 17?", "81 + 17", 98),
    Problem("What is 16 \u00d7 9?", "16 * 9", 144),
    Problem("What is 720 \u2212 350?", "720 - 350", 370),
)
"""Questions that a small model sometimes answers correctly."""

FEW_SHOT_SYSTEM = "Use the calculator."
FEW_SHOT_CALCULATOR = {
    "type": "function",
    "name": "calculator",
    "description": "Evaluate an arithmetic expression.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
}
"""Both short: without a GPU a prompt is read at about a hundred tokens per second, and the examples
suffice."""

MAX_TOKENS = 48
"""Limit per generation: a small model that writes more than this is not going to give a useful answer."""

KINDS: tuple[Callable[[Random], Problem], ...] = (plus, minus, times, percent, division, purchase, sharing)


def problems() -> list[Problem]:
    """All kinds in turn, without repeated questions."""
    random = Random(SEED)
    chosen = {problem.question: problem for problem in FIRST}
    while len(chosen) < NUM_ROWS:
        problem = KINDS[len(chosen) % len(KINDS)](random)
        chosen.setdefault(problem.question, problem)
    return list(chosen.values())


def row(problem: Problem) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem.question}]
    return {
        "responses_create_params": {"input": messages, "tools": [CALCULATOR]},
        "expected_answer": str(problem.answer),
    }


def few_shot_row(problem: Problem) -> dict[str, Any]:
    """A row with worked examples in its prompt."""
    shown = [item for number, worked in enumerate(WORKED, 1) for item in worked_example(worked, number)]
    system, question = (
        {"role": "system", "content": FEW_SHOT_SYSTEM},
        {"role": "user", "content": problem.question},
    )
    return {
        "responses_create_params": {
            "input": [system, *shown, question],
            "tools": [FEW_SHOT_CALCULATOR],
            "temperature": 1.0,
            "max_output_tokens": MAX_TOKENS,
        },
        "expected_answer": str(problem.answer),
    }


def worked_example(problem: Problem, number: int) -> list[dict[str, Any]]:
    """A question, the call of the calculator, its output, and the answer."""
    call_id, arguments = f"example_{number}", json.dumps({"expression": problem.expression})
    return [
        {"role": "user", "content": problem.question},
        {"type": "function_call", "call_id": call_id, "name": "calculator", "arguments": arguments},
        {"type": "function_call_output", "call_id": call_id, "output": json.dumps(str(problem.answer))},
        {"role": "assistant", "content": f"The answer is {problem.answer}."},
    ]


def jsonl(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in rows)


def example_jsonl() -> str:
    return jsonl(map(row, problems()))


def few_shot_jsonl() -> str:
    return jsonl(map(few_shot_row, FEW_SHOT))


if __name__ == "__main__":
    Path(__file__).with_name("example.jsonl").write_text(example_jsonl(), encoding="utf-8")
    Path(__file__).with_name("few_shot.jsonl").write_text(few_shot_jsonl(), encoding="utf-8")
