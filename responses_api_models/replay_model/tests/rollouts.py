"""Writes recorded rollouts, and starts models that replay them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.hosted import HostedServer
from responses_api_models.replay_model.app import ReplayModel, ReplayModelConfig

Item = dict[str, Any]
PLACE = {"name": "policy_model", "host": "127.0.0.1", "port": 0, "entrypoint": "app.py"}
USAGE = {
    "input_tokens": 101,
    "input_tokens_details": {"cached_tokens": 7},
    "output_tokens": 50,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 151,
}


def user(text: str) -> Item:
    return {"role": "user", "content": text, "type": "message"}


def said(text: str, **fields: Any) -> Item:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": f"msg_{text}", "type": "message", "role": "assistant", "content": [part], **fields}


def thought(text: str) -> Item:
    return {"id": "rs", "type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def called(name: str, call_id: str = "call_0", **arguments: Any) -> Item:
    text = orjson.dumps(arguments).decode()
    return {"id": "fc", "type": "function_call", "call_id": call_id, "name": name, "arguments": text}


def tool_output(output: str, call_id: str = "call_0") -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def tokens(prompt: int, generated: int) -> dict[str, Any]:
    ids = list(range(generated))
    return {
        "prompt_token_ids": list(range(prompt)),
        "generation_token_ids": ids,
        "generation_log_probs": [-0.5] * generated,
        "generation_log_probs_mode": "raw_logprobs",
    }


def recorded(
    prompt: str | list[Item], *output: Item, repeat: int = 0, seed: int | None = None, **response: Any
) -> dict[str, Any]:
    """A line of a rollouts file."""
    items = [user(prompt)] if isinstance(prompt, str) else prompt
    body = {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "created_at": 0}
    return {
        "responses_create_params": {"input": items, "seed": seed},
        "response": {**body, "output": list(output), "usage": USAGE, **response},
        "reward": 1.0,
        "agent_ref": {"name": "agent"},
        "_ng_task_index": 0,
        "_ng_rollout_index": repeat,
    }


def write(folder: Path, records: Iterable[dict[str, Any]]) -> Path:
    path = folder / "recorded.jsonl"
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return path


def hosted(path: Path, **settings: Any) -> HostedServer:
    config = ReplayModelConfig.model_validate({**PLACE, "rollouts_fpath": str(path), **settings})
    model = ReplayModel(config=config, server_client=ServerClient())
    return HostedServer("policy_model", model.setup_webserver())
