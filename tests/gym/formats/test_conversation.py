"""Where the generated part of a conversation begins."""

from typing import Any

import pytest

from nemo_gym.formats import first_generated

SYSTEM: dict[str, Any] = {"role": "system", "content": "s"}
USER: dict[str, Any] = {"role": "user", "content": [{"type": "input_text", "text": "q"}]}
EXAMPLE: dict[str, Any] = {"role": "assistant", "content": "an example"}
SAID: dict[str, Any] = {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
REFUSED: dict[str, Any] = {"role": "assistant", "content": [{"type": "refusal", "refusal": "x"}]}
THOUGHT: dict[str, Any] = {"type": "reasoning", "summary": []}
CALL: dict[str, Any] = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "c", "output": "3"}
TOKENS = {"generation_token_ids": []}


@pytest.mark.parametrize(
    ("items", "first"),
    [
        ([], 0),
        ([SYSTEM, USER], 2),
        ([SYSTEM, USER, SAID], 2),
        ([SYSTEM, USER, REFUSED], 2),
        ([USER, THOUGHT, SAID, USER, SAID], 1),
        ([USER, CALL, OUTPUT, SAID], 1),
        ([USER, {"type": "web_search_call"}, SAID], 1),
        ([SAID], 0),
        ([USER, EXAMPLE, USER, SAID], 3),
        ([USER, EXAMPLE | TOKENS, USER], 1),
        ([{"id": "msg_1", "type": "item_reference"}, OUTPUT, SAID], 2),
        ([USER, CALL, OUTPUT, SAID, USER, THOUGHT, CALL | TOKENS, OUTPUT, SAID | TOKENS], 5),
        ([USER, SAID | TOKENS], 1),
    ],
)
def test_the_first_generated_item(items: list[dict[str, Any]], first: int) -> None:
    assert first_generated(items) == first
