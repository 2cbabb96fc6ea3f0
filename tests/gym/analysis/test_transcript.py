"""The conversation of a rollout in the table that it is exported to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.gym.analysis.exporting import CHAT, OUTPUT, PROMPT, TRANSCRIPT, exported, older, rollout


def conversation(tmp_path: Path, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The transcript of one rollout, without null fields."""
    items = exported(tmp_path, record)["transcript"].to_pylist()[0]
    return [{key: value for key, value in item.items() if value is not None} for item in items]


def test_transcript_contains_the_prompt_and_all_following_items(tmp_path: Path) -> None:
    assert conversation(tmp_path, rollout()) == TRANSCRIPT


def test_a_prompt_may_be_a_string_with_instructions(tmp_path: Path) -> None:
    params = {"instructions": "Be brief.", "input": "What is 2 + 2?"}
    assert conversation(tmp_path, rollout(responses_create_params=params)) == TRANSCRIPT


def test_prompt_repeated_in_the_output_is_shown_once(tmp_path: Path) -> None:
    assert conversation(tmp_path, rollout(response={"output": PROMPT + OUTPUT})) == TRANSCRIPT


def test_an_older_rollout_has_its_transcript_from_its_chat_messages(tmp_path: Path) -> None:
    without_search = [item for item in TRANSCRIPT if item["type"] != "web_search_call"]
    assert conversation(tmp_path, older(output=CHAT)) == without_search
    assert conversation(tmp_path, older(output=OUTPUT)) == TRANSCRIPT


def test_tool_calls_of_older_files_may_be_flat(tmp_path: Path) -> None:
    output = [
        {"role": "assistant", "tool_calls": [{"name": "add", "arguments": {"a": 2}}]},
        {"role": "tool", "name": "add", "content": "4"},
    ]
    assert conversation(tmp_path, older(output=output))[2:] == [
        {"type": "function_call", "role": "assistant", "name": "add", "arguments": '{"a":2}'},
        {"type": "function_call_output", "role": "tool", "name": "add", "text": "4"},
    ]


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        ("said", {"type": "unknown", "role": "assistant", "text": "said"}),
        ({"id": "x"}, {"type": "unknown", "text": '{"id":"x"}'}),
        ({"role": "assistant", "content": None}, {"type": "message", "role": "assistant"}),
        ({"role": "assistant", "content": []}, {"type": "message", "role": "assistant", "text": ""}),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}, {"text": "this?"}]},
            {"type": "message", "role": "user", "text": "[input_image]this?"},
        ),
        (
            {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]},
            {"type": "message", "role": "assistant", "text": "no"},
        ),
        ({"role": "critic", "content": "hm"}, {"type": "message", "role": "critic", "text": "hm"}),
        (
            {"type": "function_call_output", "call_id": "c", "output": [1, 2]},
            {"type": "function_call_output", "role": "tool", "call_id": "c", "text": "[1,2]"},
        ),
        (
            {"type": "reasoning", "encrypted_content": "…"},
            {"type": "reasoning", "role": "assistant", "text": ""},
        ),
        ({"type": 5, "name": 6}, {"type": "unknown", "text": '{"type":5,"name":6}'}),
    ],
)
def test_unusual_items_are_shown_as_text(tmp_path: Path, item: Any, shown: dict[str, Any]) -> None:
    assert conversation(tmp_path, rollout(response={"output": [item]}))[2:] == [shown]


@pytest.mark.parametrize(
    "fields",
    [
        {"response": None},
        {"response": "text"},
        {"response": {"output": None, "usage": []}},
        {"responses_create_params": None},
        {"responses_create_params": {"input": 3}},
    ],
)
def test_a_rollout_without_a_conversation_is_exported_all_the_same(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    assert exported(tmp_path, rollout(**fields)).num_rows == 1


def test_deeply_nested_item_does_not_stop_the_export(tmp_path: Path) -> None:
    nested = '{"type": "deep", "a": ' + "[" * 1000 + "]" * 1000 + "}"
    line = json.dumps(rollout(response={"output": ["HERE"]})).replace('"HERE"', nested)
    assert exported(tmp_path, line)["transcript"].to_pylist()[0][2]["type"] == "deep"
