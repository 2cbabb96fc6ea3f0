"""Rollouts, and the table that they are exported to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nemo_gym.analysis.rollout_export import export_rollouts

PROMPT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}]
OUTPUT = [
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Add them."}]},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me "}, {"type": "output_text", "text": "see."}],
    },
    {"type": "function_call", "id": "f", "call_id": "c1", "name": "add", "arguments": '{"a": 2, "b": 2}'},
    {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "4"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "0"}]},
    {"type": "web_search_call", "id": "w", "status": "completed"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4"}]},
]
TRANSCRIPT = [
    {"type": "message", "role": "system", "text": "Be brief."},
    {"type": "message", "role": "user", "text": "What is 2 + 2?"},
    {"type": "reasoning", "role": "assistant", "text": "Add them."},
    {"type": "message", "role": "assistant", "text": "Let me see."},
    {
        "type": "function_call",
        "role": "assistant",
        "name": "add",
        "arguments": '{"a": 2, "b": 2}',
        "call_id": "c1",
    },
    {"type": "function_call", "role": "assistant", "name": "add", "arguments": "{}", "call_id": "c2"},
    {"type": "function_call_output", "role": "tool", "text": "4", "call_id": "c1"},
    {"type": "function_call_output", "role": "tool", "text": "0", "call_id": "c2"},
    {"type": "web_search_call", "text": '{"type":"web_search_call","id":"w","status":"completed"}'},
    {"type": "message", "role": "assistant", "text": "4"},
]
CHAT = [
    {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning_content": "Add them.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}},
            {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "4"},
    {"role": "tool", "tool_call_id": "c2", "content": "0"},
    {"role": "assistant", "content": "4"},
]


def rollout(task: int = 0, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": index,
        "agent_ref": {"type": "responses_api_agents", "name": "adder"},
        "responses_create_params": {"input": PROMPT},
        "response": {"output": OUTPUT, "usage": {"input_tokens": 20, "output_tokens": 7}},
        "reward": 1.0,
        **fields,
    }


def older(**fields: Any) -> dict[str, Any]:
    made = rollout(**fields)
    del made["response"]
    return made


def write(path: Path, *rollouts: Mapping[str, Any] | str) -> Path:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in rollouts]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def exported(tmp_path: Path, *rollouts: Mapping[str, Any] | str) -> pa.Table:
    """The table that these rollouts are exported to."""
    source, target = write(tmp_path / "in.jsonl", *rollouts), tmp_path / "out.parquet"
    done = export_rollouts(source, target)
    table = pq.read_table(target)
    assert done == (table.num_rows, table.num_columns) == (len(rollouts), len(set(table.column_names)))
    return table
