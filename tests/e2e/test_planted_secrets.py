"""Twenty secrets are planted; none is found in a file, log, tracker, list of processes or environment."""

import asyncio
import json
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from scripts.scripted_endpoint import Output, ScriptedEndpoint, message, user_text
from tests.support.commands import BIN, NgRun, descendants_of, free_port, run_command, wait_until
from tests.support.components import write_component, write_files

AGENT = "responses_api_agents/simple_agent/configs/simple_agent.yaml"
MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"
NUMBERS = iter(range(1, 100))


def planted(kind: str) -> str:
    return f"{kind}-Zq7{next(NUMBERS):02}xK9vW3nB"


ENVIRONMENT: dict[str, Any] = {
    "service_token": planted("tok"),
    "api_keys": [planted("key"), planted("key")],
    "aws_access_key": planted("aws"),
    "aws_secret_access_key": planted("aws"),
    "db_passwd": planted("pw"),
    "smtp_password": planted("pw"),
    "client_secret": planted("sec"),
    "nested": {"secrets": {"deep": [planted("sec")]}},
    "default_headers": {"X-Org": planted("org"), "Authorization": f"Bearer {planted('bearer')}"},
    "extra_headers": [["X-Cookie", planted("cookie")]],
    "proxy": f"http://me:{planted('pw')}@proxy:8080/",
    "git_url": f"https://{planted('ghp-token')}@host/x.git",
    "query_url": f"http://host/?api_key={planted('query')}&x=1",
}
POLICY_KEY, OTHER_TOKEN, HF_TOKEN = planted("sk"), planted("tok"), planted("hf")
WANDB_KEY = f"local-{planted('wandb')}{'a1' * 20}"
METADATA_KEY, ROW_KEY = planted("meta"), planted("row")
IN_ROWS = (METADATA_KEY, ROW_KEY)

APP = """
import logging
from pydantic import ConfigDict
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer


class LeakyConfig(BaseResourcesServerConfig):
    model_config = ConfigDict(extra="allow")


class Server(SimpleResourcesServer):
    config: LeakyConfig

    async def verify(self, body) -> dict:
        secrets = str(self.config.model_extra)
        logging.getLogger("leaky").warning("using %s", secrets)
        if "raise" in str(body.responses_create_params.input):
            raise RuntimeError(f"refused for {secrets}")
        return {"reward": 1.0}
"""


def texts_in(value: Any) -> Iterator[str]:
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(item)
    if isinstance(value, str):
        yield value


def everywhere() -> list[str]:
    """What must be found nowhere."""
    password = ENVIRONMENT["proxy"].partition("me:")[2].partition("@")[0]
    token = ENVIRONMENT["git_url"].partition("//")[2].partition("@")[0]
    query = ENVIRONMENT["query_url"].partition("=")[2].partition("&")[0]
    in_urls = [password, token, query, b64encode(f"me:{password}".encode()).decode()]
    others = [
        text.removeprefix("Bearer ")
        for text in texts_in(ENVIRONMENT)
        if "://" not in text and text != "X-Cookie"
    ]
    return [*others, *in_urls, POLICY_KEY, OTHER_TOKEN, HF_TOKEN, WANDB_KEY]


class Endpoint:
    """Refuses some requests and repeats all that it received; waits until the test has looked around."""

    def __init__(self) -> None:
        self.is_reached, self.may_respond = threading.Event(), threading.Event()
        self.served: ScriptedEndpoint | None = None

    async def __call__(self, body: dict[str, Any]) -> Output:
        self.is_reached.set()
        await asyncio.to_thread(self.may_respond.wait)
        if "echo" in user_text(body):
            assert self.served is not None
            received = {"headers": self.served.headers[-1], "body": body}
            return web.json_response({"error": {"message": f"refused: {received}"}}, status=400)
        return [message("done")]


def prepare(folder: Path, base_url: str) -> list[str]:
    """Write the files of the runs; returns the paths of the configuration."""
    config = write_component(folder, "leaky", APP)
    block = {
        "leaky": {"resources_servers": {"leaky": {"entrypoint": "app.py", "domain": "other", **ENVIRONMENT}}}
    }
    (folder / config).write_text(yaml.safe_dump(block))
    settings = {
        "policy_base_url": base_url,
        "policy_model_name": "scripted",
        "other_token": OTHER_TOKEN,
        "hf_token": HF_TOKEN,
        "wandb_api_key": WANDB_KEY,
        "responses_create_params": {"metadata": {"user_key": METADATA_KEY}},
    }
    agent = {
        "leaky_agent": {
            "responses_api_agents": {
                "simple_agent": {
                    "entrypoint": "app.py",
                    "resources_server": {"type": "resources_servers", "name": "leaky"},
                    "model_server": {"type": "responses_api_models", "name": "policy_model"},
                }
            }
        }
    }
    write_files(folder, {"env.yaml": yaml.safe_dump(settings), "agent.yaml": yaml.safe_dump(agent)})
    rows = [
        {
            "responses_create_params": {
                "input": [{"role": "user", "content": text}],
                "metadata": {"row_key": ROW_KEY},
            }
        }
        for text in ("plain", "raise", "echo")
    ]
    (folder / "input.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [config, "agent.yaml", MODEL]


def collect(folder: Path, port: int, endpoint: Endpoint, *arguments: str) -> str:
    """Collect twice, the second time into the same output; returns what was printed."""
    return "".join(_collect(folder, port, endpoint, *arguments) for _ in range(2))


def _collect(folder: Path, port: int, endpoint: Endpoint, *arguments: str) -> str:
    endpoint.is_reached.clear()
    endpoint.may_respond.clear()
    command = ["+agent_name=leaky_agent", "+input_jsonl_fpath=input.jsonl", "+output_jsonl_fpath=out/a.jsonl"]
    command += [f"+head_server.port={port}", "+max_attempts=1", *arguments]
    process = subprocess.Popen(
        [str(BIN / "ng_collect_rollouts"), *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_until(lambda: endpoint.is_reached.is_set() or process.poll() is not None)
        check_processes(process.pid)
    finally:
        endpoint.may_respond.set()
    printed = process.communicate(timeout=120)[0]
    assert process.returncode == 1, printed  # two of the three rollouts failed
    return printed


def check_processes(pid: int) -> None:
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "args"], capture_output=True, text=True, check=True
    ).stdout
    assert_clean("ps", listed, [*everywhere(), *IN_ROWS])
    for child in descendants_of(pid):
        for name in ("environ", "cmdline"):
            assert_clean(
                f"{name} of {child}", Path(f"/proc/{child}/{name}").read_text(errors="replace"), everywhere()
            )


def check_files(folder: Path) -> None:
    files = [
        path for path in folder.rglob("*") if path.is_file() and path.name not in ("env.yaml", "leaky.yaml")
    ]
    assert len([path for path in files if path.parent.name == "out"]) >= 6
    for path in files:
        secrets = [*everywhere(), *IN_ROWS] if path.name.endswith("_manifest.json") else everywhere()
        assert_clean(str(path.relative_to(folder)), path.read_bytes().decode("utf-8", "replace"), secrets)
    assert any("****" in path.read_text() for path in files if "failures" in path.name)


def assert_clean(where: str, text: str, secrets: list[str]) -> None:
    found = [text[max(0, text.index(one) - 80) : text.index(one) + 80] for one in secrets if one in text]
    assert not found, f"{where}: {found}"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    script = Endpoint()
    with ScriptedEndpoint(script) as served:
        script.served = served
        yield script


def test_twenty_secrets_are_planted() -> None:
    assert len({*everywhere(), *IN_ROWS}) >= 20


@pytest.mark.parametrize("mode", ["embedded", "processes"])
def test_no_secret_leaves_a_collection(
    mode: str, tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLICY_API_KEY", POLICY_KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert endpoint.served is not None
    paths = f"+config_paths=[{','.join(prepare(tmp_path, endpoint.served.base_url))}]"
    arguments = [paths, "+hosting=embedded"]
    if mode == "processes":
        arguments += ["+executor=processes", "+num_workers=2"]
    else:
        arguments += ["+wandb_project=mine", "+mlflow_tracking_uri=sqlite:///mlflow.db"]
    printed = collect(tmp_path, free_port(), endpoint, *arguments)
    assert_clean("terminal", printed, [*everywhere(), *IN_ROWS])
    assert "****" in printed
    check_files(tmp_path)
    dumped = run_command("ng_dump_config", paths, cwd=tmp_path)
    assert_clean("ng_dump_config", dumped.stdout + dumped.stderr, [*everywhere(), *IN_ROWS])
    assert dumped.returncode == 0 and "****" in dumped.stdout


def test_no_secret_leaves_the_servers_of_ng_run(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLICY_API_KEY", POLICY_KEY)
    assert endpoint.served is not None
    with NgRun(prepare(tmp_path, endpoint.served.base_url), {}, tmp_path) as run:
        check_processes(run.process.pid)
        printed = collect(tmp_path, run.head.port, endpoint)
        served = run.fetch("/global_config_dict_yaml").decode()
    for where, text in (("collector", printed), ("ng_run", run.output), ("head server", served)):
        assert_clean(where, text, [*everywhere(), *IN_ROWS])
    assert "****" in served and "****" in run.output
    check_files(tmp_path)
