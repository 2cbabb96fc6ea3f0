"""Rollouts with token ids, as a collector writes them, and the token report of a file of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_gym.analysis.tokens.findings import TokenReport
from nemo_gym.analysis.tokens.report import report_tokens

Turn = tuple[list[int], list[int], list[dict[str, Any]]]
"""Prompt, generation, and the output items of the turn; the last item carries the token ids."""


def message(text: str = "", **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part], **fields}


def call(arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "name": "add", "arguments": arguments, "call_id": "1"}


REASONING = {"type": "reasoning", "summary": []}
TOOL_OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "4"}


def bundle(prompt: Any, generation: Any, **fields: Any) -> dict[str, Any]:
    return {
        "prompt_token_ids": prompt,
        "generation_token_ids": generation,
        "generation_log_probs": [-0.5] * len(generation) if isinstance(generation, list) else None,
        **fields,
    }


def record(output: Any, task: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": 0,
        "agent_ref": {"name": "adder"},
        "response": {"model": "toy", "output": output},
        **fields,
    }


def write(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def check(tmp_path: Path, *outputs: Any, **options: Any) -> TokenReport:
    """The report of a file with one rollout per output."""
    records = [record(output, task) for task, output in enumerate(outputs)]
    return report_tokens(write(tmp_path / "rollouts.jsonl", records), **options)


def played(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The output items of a rollout with these turns."""
    output: list[dict[str, Any]] = []
    for prompt, generation, items in turns:
        *before, last = items
        output += [*before, {**last, **bundle(prompt, generation)}, TOOL_OUTPUT]
    return output
