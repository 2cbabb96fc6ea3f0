"""Questions for the calculator, with a prompt in which a small model uses it now and then.

Two worked examples show how the tool is called: a third hardly helps, and with one the model hardly ever
succeeds. What it gets wrong is the form of a call, not the arithmetic, which the tool does.
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
    """What a good call of the calculator says."""
    answer: int


@dataclass(frozen=True)
class Questions:
    """Disjoint."""

    training: list[Question]
    heldout: list[Question]


_SHOWN = (
    Question("What is 412 + 230?", "412 + 230", 642),
    Question("What is 57 × 38?", "57 * 38", 2166),
)
"""The worked examples of every prompt; nobody is asked for them."""


_MOST = 100_000
"""A tenth of all that can be asked: drawing more that differ would take long."""


def questions(seed: int, *, training: int, heldout: int) -> Questions:
    """So many of each, the same for the same seed."""
    if training + heldout > _MOST:
        raise ConfigError(
            f"{training + heldout} different questions are wanted, of at most {_MOST}; take fewer"
        )
    random, chosen = Random(seed), dict[str, Question]()
    taken = {shown.text for shown in _SHOWN}
    while len(chosen) < training + heldout:
        question = _question(random)
        if question.text not in taken:
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
    """A row of the calculator's data."""
    shown = [item for number, one in enumerate(_SHOWN, 1) for item in _worked(one, number)]
    return {
        "responses_create_params": {
            "input": [
                {"role": "system", "content": SYSTEM},
                *shown,
                {"role": "user", "content": question.text},
            ],
            "tools": [TOOL],
        },
        "expected_answer": str(question.answer),
        "agent_ref": {"type": "responses_api_agents", "name": AGENT},
    }


def _worked(question: Question, number: int) -> list[dict[str, Any]]:
    """A question, the call of the calculator, what it answers, and the answer."""
    call_id, arguments = f"example_{number}", json.dumps({"expression": question.expression})
    return [
        {"role": "user", "content": question.text},
        {"type": "function_call", "call_id": call_id, "name": "calculator", "arguments": arguments},
        {"type": "function_call_output", "call_id": call_id, "output": json.dumps(str(question.answer))},
        {"role": "assistant", "content": f"The answer is {question.answer}."},
    ]


def datum(question: Question, idx: int) -> DatumSpec:
    """A prompt for the rollout manager; on the Gym path its tokens are the model server's business."""
    nothing = torch.zeros(0, dtype=torch.int64)
    return {
        "message_log": [{"role": "user", "content": question.text, "token_ids": nothing}],
        "length": 0,
        "extra_env_info": row(question),
        "loss_multiplier": 1.0,
        "idx": idx,
        "task_name": "nemo_gym",
    }
