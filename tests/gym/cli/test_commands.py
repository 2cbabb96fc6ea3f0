"""The commands that start no servers."""

import asyncio
import json
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

import nemo_gym
from scripts.scripted_endpoint import Item, ScriptedEndpoint, function_call, message, tool_outputs
from tests.gym.cli.conftest import Ng
from tests.support.commands import free_port
from tests.support.components import SERVER, write_component, write_files

OPENAI_MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"


def test_dump_config_shows_the_merged_configuration_without_secrets(
    ng: Ng, config: str, tmp_path: Path
) -> None:
    write_files(tmp_path, {"env.yaml": "depth: {of: {b: 3}}\nother_token: tok-never-shown"})
    done = ng("dump_config", config, "+depth.of.c=4", "+words='${depth.of.a}'")
    assert done.code == 0
    values = yaml.safe_load(done.out)
    assert values["depth"] == {"of": {"a": 1, "b": 3, "c": 4}}
    assert values["words"] == 1
    assert values["policy_api_key"] == values["other_token"] == "****"
    assert values["endpoint"] == "https://****@host/v1"
    assert values["small"]["resources_servers"]["small"]["entrypoint"] == "app.py"
    assert not any(secret in done.out for secret in ("never-shown", "pass-word"))


def test_dump_config_needs_no_servers(ng: Ng) -> None:
    assert yaml.safe_load(ng("dump_config").out)["head_server"] == {"host": "127.0.0.1", "port": 11000}


def test_validate_reports_a_summary(ng: Ng, config: str) -> None:
    done = ng("validate", config)
    assert (done.code, done.err) == (0, "")
    assert "small  resources_servers  small" in done.out
    assert "valid: 1 server" in done.out


def test_shipped_environments_are_valid(ng: Ng) -> None:
    folders = sorted(Path(nemo_gym.PARENT_DIR, "resources_servers").iterdir())
    names = [folder.name for folder in folders if (folder / "app.py").is_file()]
    assert len(names) >= 4
    paths = [f"resources_servers/{name}/configs/{name}.yaml" for name in names]
    done = ng("validate", f"+config_paths=[{','.join([*paths, OPENAI_MODEL])}]", *POLICY)
    assert done.code == 0, done.err


POLICY = ("+policy_base_url=http://127.0.0.1:1", "+policy_api_key=no-key-at-all", "+policy_model_name=m")

Spoil = Callable[[Path], object]
BAD_CONFIGS: dict[str, tuple[Spoil, list[str]]] = {
    "no file": (lambda f: (f / "small.yaml").unlink(), ["small.yaml", "no such file"]),
    "yaml": (lambda f: write_files(f, {"small.yaml": "a:\n  - [1\nb: 2"}), ["small.yaml:3:"]),
    "missing": (lambda f: write_files(f, {"small.yaml": "a: {b: '???'}"}), ["a.b", "+a.b="]),
    "no servers": (lambda f: write_files(f, {"small.yaml": "a: 1"}), ["no servers", "config_paths"]),
    "import": (lambda f: write_component(f, "small", "\n1/0"), ["small/app.py:2", "ZeroDivisionError"]),
    "exit": (lambda f: write_component(f, "small", "import sys\nsys.exit()"), ["small/app.py:2"]),
    "package": (lambda f: write_component(f, "small", "import absent_x"), ["pip install absent_x"]),
    "class": (lambda f: write_component(f, "small", "x = 1"), ["exactly one server class"]),
    "settings": (
        lambda f: write_component(
            f,
            "small",
            SERVER.replace(
                "class Server(", "class Own(BaseResourcesServerConfig):\n    size: int\n\nclass Server("
            ).replace("config: Base", "config: Own\n    _: Base"),
        ),
        ["small.resources_servers.small.size", "required"],
    ),
    "folder": (
        lambda f: write_files(
            f, {"small.yaml": "s: {resources_servers: {gone: {entrypoint: app.py, domain: other}}}"}
        ),
        ["resources_servers/gone/app.py", "NEMO_GYM_EXTRA_ROOTS"],
    ),
    "dataset": (
        lambda f: write_files(
            f,
            {
                "small.yaml": "s: {resources_servers: {small: {entrypoint: app.py, domain: other, datasets: "
                "[{name: e, type: example, jsonl_fpath: data/gone.jsonl}]}}}"
            },
        ),
        ["data/gone.jsonl", "jsonl_fpath"],
    ),
}


@pytest.mark.parametrize("kind", BAD_CONFIGS)
def test_validate_reports_errors(ng: Ng, config: str, tmp_path: Path, kind: str) -> None:
    spoil, expected = BAD_CONFIGS[kind]
    spoil(tmp_path)
    ng("validate", config).assert_complains(*expected)


def test_validate_reports_every_server_that_is_wrong(ng: Ng, tmp_path: Path) -> None:
    paths = [write_component(tmp_path, name, f"raise OSError('{name} is ill')") for name in ("one", "two")]
    done = ng("validate", f"+config_paths=[{','.join(paths)}]")
    done.assert_complains("one is ill", "two is ill")


def test_datasets_that_are_prepared_later_may_be_missing(ng: Ng, config: str, tmp_path: Path) -> None:
    dataset = "{name: t, type: train, license: MIT, jsonl_fpath: data/later.jsonl}"
    block = f"{{entrypoint: app.py, domain: other, datasets: [{dataset}]}}"
    write_files(tmp_path, {"small.yaml": f"s: {{resources_servers: {{small: {block}}}}}"})
    assert ng("validate", config).code == 0


def test_version_is_that_of_the_package(ng: Ng) -> None:
    assert ng("version").out.startswith(f"handspring {nemo_gym.__version__} ")
    versions = json.loads(ng("version", "+json_output=true").out)
    assert versions["handspring"] == nemo_gym.__version__
    assert {"python", "fastapi", "pydantic"} <= set(versions)


def test_version_ignores_a_broken_env_file(ng: Ng, tmp_path: Path) -> None:
    write_files(tmp_path, {"env.yaml": "a: [1"})
    assert ng("version").code == 0


def test_status_says_in_one_line_that_nothing_is_running(ng: Ng, tmp_path: Path) -> None:
    write_files(tmp_path, {"env.yaml": f"head_server: {{port: {free_port()}}}"})
    done = ng("status")
    assert (done.code, done.err, len(done.out.splitlines())) == (0, "", 1)
    assert done.out.startswith("Nothing is running: no head server at http://127.0.0.1:")
    assert "no collection writes into this folder" in done.out
    assert json.loads(ng("status", "--json").out) == {"servers": [], "collections": []}


def test_status_without_a_head_server_names_the_address_and_how_to_start_one(ng: Ng) -> None:
    port = free_port()
    ng("status", f"+head_server.port={port}").assert_complains(f"http://127.0.0.1:{port}", "ng_run")


@pytest.mark.parametrize("page", [b"<html>hello</html>", b"[1, 2]", b'{"status": "ok"}', b"\xff\xfe"])
def test_status_reports_if_another_program_responds(ng: Ng, page: bytes) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.handle_request, daemon=True).start()
        port = other.server_address[1]
        ng("status", f"+head_server.port={port}").assert_complains(f"127.0.0.1:{port}", "head server")


def test_new_environment_passes_its_tests_and_plays_a_rollout(ng: Ng, tmp_path: Path) -> None:
    entrypoint = "+entrypoint=resources_servers/my_env"
    done = ng("init_resources_server", entrypoint)
    assert done.code == 0, done.err
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {
        f"resources_servers/my_env/{name}"
        for name in ("app.py", "README.md", "configs/my_env.yaml", "data/example.jsonl", "tests/test_app.py")
    }
    assert written <= set(done.out.split())
    assert not any("$" in (tmp_path / name).read_text() for name in written)
    config_paths = f"+config_paths=[resources_servers/my_env/configs/my_env.yaml,{OPENAI_MODEL}]"
    assert ng("validate", config_paths, *POLICY).code == 0
    assert ng("test", entrypoint).code == 0
    row = json.loads((tmp_path / "resources_servers/my_env/data/example.jsonl").read_text())
    assert asyncio.run(play("my_env", row))["reward"] == 1.0


def test_new_agent_passes_its_tests_and_plays_a_rollout(ng: Ng, tmp_path: Path) -> None:
    entrypoint = "+entrypoint=responses_api_agents/my_agent"
    done = ng("init_agent", entrypoint)
    assert done.code == 0, done.err
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {
        f"responses_api_agents/my_agent/{name}"
        for name in ("app.py", "README.md", "configs/my_agent.yaml", "tests/test_app.py")
    }
    assert written <= set(done.out.split())
    assert not any("$" in (tmp_path / name).read_text() for name in written)
    assert ng("test", entrypoint).code == 0
    ng("init_resources_server", "+entrypoint=resources_servers/my_env")
    row = json.loads((tmp_path / "resources_servers/my_env/data/example.jsonl").read_text())
    rollout = asyncio.run(play_with_new_agent(row))
    assert (rollout["reward"], rollout["expected_answer"]) == (1.0, "hello")
    assert [item["content"][0]["text"] for item in rollout["response"]["output"]] == ["hello", "hello"]


async def play_with_new_agent(row: dict[str, Any]) -> Any:
    environment, agent = (
        f"{kind}/{name}/configs/{name}.yaml"
        for kind, name in (("resources_servers", "my_env"), ("responses_api_agents", "my_agent"))
    )
    with ScriptedEndpoint(lambda request: [message("hello")]) as endpoint:
        reference = {"my_agent.responses_api_agents.my_agent.resources_server.name": "my_env"}
        settings = {**endpoint.settings, **reference}
        async with nemo_gym.open_servers([environment, agent, OPENAI_MODEL], settings) as client:
            response = await client.post("my_agent", "/run", json=row)
            assert response.status == 200, await response.text()
            return await response.json()


@pytest.mark.parametrize("entrypoint", ["mine", "resources_servers/mine", "responses_api_agents/My-Agent"])
def test_name_that_cannot_be_an_agents_is_refused(ng: Ng, tmp_path: Path, entrypoint: str) -> None:
    ng("init_agent", f"+entrypoint={entrypoint}").assert_complains("responses_api_agents/<name>")
    assert list(tmp_path.iterdir()) == []


def echo(request: dict[str, Any]) -> list[Item]:
    outputs = tool_outputs(request)
    return [message(outputs[-1])] if outputs else [function_call("echo", text="hello")]


async def play(name: str, row: dict[str, Any]) -> Any:
    paths = [f"resources_servers/{name}/configs/{name}.yaml", OPENAI_MODEL]
    with ScriptedEndpoint(echo) as endpoint:
        async with nemo_gym.open_servers(paths, endpoint.settings) as client:
            response = await client.post(f"{name}_simple_agent", "/run", json=row)
            assert response.status == 200, await response.text()
            return await response.json()


def test_existing_folder_is_never_written_to(ng: Ng, tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers/mine"
    folder.mkdir(parents=True)
    done = ng("init_resources_server", "+entrypoint=resources_servers/mine")
    done.assert_complains("resources_servers/mine", "already")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "entrypoint",
    [
        "mine",
        "resources_servers",
        "resources_servers/My-Env",
        "resources_servers/1st",
        "resources_servers/class",
        "resources_servers/a/b",
        "responses_api_agents/mine",
        "resources_servers/../mine",
        "resources_servers/é",
    ],
)
def test_name_that_cannot_be_an_environments_is_refused(ng: Ng, tmp_path: Path, entrypoint: str) -> None:
    ng("init_resources_server", f"+entrypoint={entrypoint}").assert_complains("resources_servers/<name>")
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder_is_an_error_with_its_name(ng: Ng, tmp_path: Path) -> None:
    (tmp_path / "resources_servers").write_text("a file, not a folder")
    ng("init_resources_server", "+entrypoint=resources_servers/mine").assert_complains("resources_servers")


def test_test_command_returns_the_exit_code_of_the_tests(ng: Ng, tmp_path: Path) -> None:
    write_component(tmp_path, "failing", files={"tests/test_app.py": "def test_it(): assert [1] == [2]"})
    done = ng("test", "+entrypoint=resources_servers/failing")
    assert done.code == 1
    assert "At index 0 diff: 1 != 2" in done.out  # pytest rewrote the assertion


def test_test_command_reports_a_missing_component(ng: Ng, tmp_path: Path) -> None:
    ng("test", "+entrypoint=resources_servers/gone").assert_complains("resources_servers/gone", str(tmp_path))


def test_tests_of_a_component_under_an_extra_root_are_found(
    ng: Ng, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_component(
        tmp_path / "extra",
        "afar",
        "from utils import WORD\n",
        {
            "utils.py": "WORD = 'afar'",
            "tests/conftest.py": "from resources_servers.afar.app import WORD",
            "tests/test_app.py": "from resources_servers.afar.app import WORD\n"
            "def test_it(): assert WORD == 'afar'",
        },
    )
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", os.fspath(tmp_path / "extra"))
    assert ng("test", "+entrypoint=resources_servers/afar").code == 0
