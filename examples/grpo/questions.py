"""Questions for the calculator, with a prompt that makes a small model use it sometimes.

Two worked examples show how to call the tool. With one example the model rarely succeeds; a third hardly
helps. Its mistakes are in the form of a call: the tool does the arithmetic.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_rl.data.interfaces import DatumSpec

AGENT = "calculator_simple_agent"
SYSTEM = "Use the calculator."
TOOL = {
    "type": "function",
    "name": "calculator",
    "description": "Evaluate an arithmetic expression.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
}


@dataclass(frozen=True)
class Question:
    text: str
    expression: str
    """The argument of a correct call of the calculator."""
    answer: int


@dataclass(frozen=True)
class Questions:
    """Disjoint sets of questions."""

    training: list[Question]
    heldout: list[Question]


_WORKED_EXAMPLES = (
    Question("What is 412 + 230?", "412 + 230", 642),
    Question("What is 57 × 38?", "57 * 38", 2166),
)
"""The worked examples of every prompt. They are never used as questions."""


_MAX_QUESTIONS = 100_000
"""A tenth of all possible questions: to draw more distinct ones would take long."""


def questions(seed: int, *, training: int, heldout: int) -> Questions:
    """This many questions of each set, the same for the same seed."""
    if training + heldout > _MAX_QUESTIONS:
        raise ConfigError(
            f"the plan needs {training + heldout} different questions, but at most {_MAX_QUESTIONS} are "
            "available; use fewer steps, prompts per step or held-out tasks"
        )
    random, chosen = Random(seed), dict[str, Question]()
    examples = {example.text for example in _WORKED_EXAMPLES}
    while len(chosen) < training + heldout:
        question = _question(random)
        if question.text not in examples:
            chosen[question.text] = question
    everything = list(chosen.values())
    return Questions(training=everything[heldout:], heldout=everything[:heldout])


def _question(random: Random) -> Question:
    kind = random.choice("+−×")
    if kind == "×":
        a, b = random.randint(11, 99), random.randint(3, 99)
        return Question(f"What is {a} × {b}?", f"{a} * {b}", a * b)
    a, b = random.randint(10, 999), random.randint(10, 999)
    if kind == "+":
        return Question(f"What is {a} + {b}?", f"{a} + {b}", a + b)
    a, b = max(a, b), min(a, b)
    return Question(f"What is {a} − {b}?", f"{a} - {b}", a - b)


def row(question: Question) -> dict[str, Any]:
    """An input row for the calculator."""
    examples = [
        item for number, example in enumerate(_WORKED_EXAMPLES, 1) for item in _items(example, number)
    ]
    return {
        "responses_create_params": {
            "input": [
                {"role": "system", "content": SYSTEM},
                *examples,
                {"role": "user", "content": question.text},
            ],
            "tools": [TOOL],
        },
        "expected_answer": str(question.answer),
        "agent_ref": {"type": "responses_api_agents", "name": AGENT},
    }


def _items(example: Question, number: int) -> list[dict[str, Any]]:
    """A worked example: the question, the call of the calculator, its output, and the answer."""
    call_id, arguments = f"example_{number}", json.dumps({"expression": example.expression})
    return [
        {"role": "user", "content": example.text},
        {"type": "function_call", "call_id": call_id, "name": "calculator", "arguments": arguments},
        {"type": "function_call_output", "call_id": call_id, "output": json.dumps(str(example.answer))},
        {"role": "assistant", "content": f"The answer is {example.answer}."},
    ]


def datum(question: Question, idx: int) -> DatumSpec:
    """A prompt for the rollout manager. It has no tokens: on the Gym path the model server tokenizes."""
    nothing = torch.zeros(0, dtype=torch.int64)
    return {
        "message_log": [{"role": "user", "content": question.text, "token_ids": nothing}],
        "length": 0,
        "extra_env_info": row(question),
        "loss_multiplier": 1.0,
        "idx": idx,
        "task_name": "nemo_gym",
    }
