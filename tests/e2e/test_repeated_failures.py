"""A failure that happens hundreds of times is logged in full once per process, then counted."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from scripts.scripted_endpoint import Output, ScriptedEndpoint, function_call, message, tool_outputs
from tests.support.commands import NgRun, free_port, run_command
from tests.support.components import SERVER, write_component, write_files

MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"
RAISING = SERVER.replace('return {"result": RESULT}', 'raise RuntimeError(f"no result for {body}\\x1b[2J")')
TOOL = {
    "type": "function",
    "name": "ask",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
CALLS = 20


def calls_the_tool(body: dict[str, Any]) -> Output:
    number = len(tool_outputs(body))
    if number < CALLS:
        return [function_call("ask", f"call_{number}", number=number, word="x" * number)]
    return [message("done")]


def refuses_the_key(body: dict[str, Any]) -> Output:
    return web.json_response({"error": {"message": "Incorrect API key provided"}}, status=401)


def prepare(folder: Path, settings: Mapping[str, str], rows: int) -> list[str]:
    config = write_component(folder, "raising", RAISING)
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": "raising"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    agent_block = {"agent": {"responses_api_agents": {"simple_agent": agent}}}
    write_files(
        folder, {"agent.yaml": yaml.safe_dump(agent_block), "env.yaml": yaml.safe_dump(dict(settings))}
    )
    row = {"responses_create_params": {"input": [{"role": "user", "content": "go"}], "tools": [TOOL]}}
    (folder / "input.jsonl").write_text((json.dumps(row) + "\n") * rows)
    return [config, "agent.yaml", MODEL]


def collect(folder: Path, *arguments: str) -> list[str]:
    """The lines on standard error, without those of the progress."""
    command = ["+agent_name=agent", "+input_jsonl_fpath=input.jsonl", "+output_jsonl_fpath=out/a.jsonl"]
    done = run_command("ng_collect_rollouts", *command, *arguments, cwd=folder)
    assert "Traceback" not in done.stdout
    return [line for line in done.stderr.splitlines() if not line.startswith("Collecting")]


def log_lines(lines: list[str]) -> list[str]:
    """The lines that begin a log record; the others belong to a traceback."""
    return [line for line in lines if "  " not in line[:2] and line.strip()]


@pytest.mark.parametrize("mode", ["embedded", "processes"])
def test_tool_that_raises_thousands_of_times_gives_a_few_lines(mode: str, tmp_path: Path) -> None:
    with ScriptedEndpoint(calls_the_tool) as endpoint:
        paths = prepare(tmp_path, endpoint.settings, rows=100)
        arguments = [
            f"+config_paths=[{','.join(paths)}]",
            "+hosting=embedded",
            f"+head_server.port={free_port()}",
        ]
        if mode == "processes":
            arguments += ["+executor=processes", "+num_workers=2"]
        lines = collect(tmp_path, *arguments)
        assert len(endpoint.requests) == 100 * (CALLS + 1)
    text = "\n".join(lines)
    in_full = text.count("Traceback (most recent call last)")
    counts = [int(line.split("… and ")[1].split()[0]) for line in lines if "… and " in line]
    assert len(counts) == in_full <= (2 if mode == "processes" else 1)
    assert in_full + sum(counts) == 100 * CALLS
    assert len(log_lines(lines)) <= 10, text
    assert "\x1b" not in text and r"\x1b[2J" in text


def test_servers_of_ng_run_count_their_failures(tmp_path: Path) -> None:
    with ScriptedEndpoint(calls_the_tool) as endpoint:
        paths = prepare(tmp_path, endpoint.settings, rows=50)
        with NgRun(paths, {}, tmp_path) as run:
            lines = collect(tmp_path, f"+head_server.port={run.head.port}")
        served = [line for name in ("raising", "agent", "policy_model") for line in run.lines_of(name)]
    assert len(log_lines(lines)) <= 10, lines
    assert "\n".join(served).count("Traceback (most recent call last)") == 1
    assert f"… and {50 * CALLS - 1} more like this" in "\n".join(served)
    assert len(log_lines(served)) <= 10, served


def test_wrong_key_gives_a_few_lines_for_480_rows(tmp_path: Path) -> None:
    with ScriptedEndpoint(refuses_the_key) as endpoint:
        paths = prepare(tmp_path, endpoint.settings, rows=480)
        port = f"+head_server.port={free_port()}"
        lines = collect(tmp_path, f"+config_paths=[{','.join(paths)}]", "+hosting=embedded", port)
    assert 1 <= len(lines) <= 10, lines
