"""The published interface is sufficient: environments in a user's own folder use nothing else."""

import asyncio
import http.client
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.server_utils import ServerClient
from scripts.scripted_endpoint import ScriptedEndpoint
from tests.support.commands import ROOT, NgRun, free_port, run_command, wait_until
from tests.support.players import play
from tests.test_layers import PUBLISHED, own_modules

FOREIGN = ROOT / "tests" / "foreign"
AGENTS = {"riddle_judge": "riddle_judge_polite_agent", "ledger": "ledger_simple_agent"}
CONFIGS = [
    *(f"resources_servers/{name}/configs/{name}.yaml" for name in AGENTS),
    "responses_api_models/openai_model/configs/openai_model.yaml",
]
SOURCES = sorted(file for file in FOREIGN.rglob("*.py") if "__pycache__" not in file.parts)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(FOREIGN)))
def test_foreign_environments_use_only_published_names(file: Path) -> None:
    assert own_modules(file) <= PUBLISHED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own folder outside the checkout."""
    folder = tmp_path_factory.mktemp("somebodys") / "project"
    shutil.copytree(FOREIGN, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def endpoint() -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint(play) as endpoint:
        yield endpoint


async def rewards(client: ServerClient, folder: Path) -> list[float]:
    """The rewards of one rollout in each environment."""
    found = []
    for environment, agent in AGENTS.items():
        response = await client.post(agent, "/run", json=first_row(folder, environment))
        assert response.status == 200, await response.text()
        found.append((await response.json())["reward"])
    return found


def first_row(folder: Path, environment: str) -> Any:
    file = folder / "resources_servers" / environment / "data" / "example.jsonl"
    return json.loads(file.read_text().splitlines()[0])


def test_foreign_environments_work_embedded(
    folder: Path, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)

    async def embedded() -> list[float]:
        async with nemo_gym.open_servers(CONFIGS, endpoint.settings) as client:
            return await rewards(client, folder)

    assert asyncio.run(embedded()) == [1.0, 1.0]


def test_foreign_environments_work_served(folder: Path, endpoint: ScriptedEndpoint) -> None:
    with NgRun(CONFIGS, endpoint.settings, folder) as run:

        async def served() -> list[float]:
            return await rewards(ServerClient.load_from_global_config(run.head), folder)

        assert asyncio.run(served()) == [1.0, 1.0]


def test_collected_rollouts_have_all_fields_of_their_rows(folder: Path, endpoint: ScriptedEndpoint) -> None:
    """Although this verifier returns only what it declares, and this agent only what the verifier returns."""
    settings = [f"+{key}={value}" for key, value in endpoint.settings.items()]
    files = [f"+config_paths=[{','.join(CONFIGS)}]", "+output_jsonl_fpath=riddles.jsonl", "+hosting=embedded"]
    rows = "resources_servers/riddle_judge/data/example.jsonl"
    which = [f"+agent_name={AGENTS['riddle_judge']}", f"+input_jsonl_fpath={rows}"]
    done = run_command("ng_collect_rollouts", *settings, *files, *which, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    rollout = json.loads((folder / "riddles.jsonl").read_text().splitlines()[0])
    row = first_row(folder, "riddle_judge")
    assert (rollout["riddle"], rollout["judge_model"]) == (row["riddle"], "judge")


def test_tests_of_foreign_environments_pass(folder: Path) -> None:
    done = run_command("ng_test", "+entrypoint=resources_servers/riddle_judge", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@contextmanager
def served_by_itself(folder: Path, name: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`python app.py …`, once it accepts requests at the port."""
    port = free_port()
    process = subprocess.Popen(
        [
            sys.executable,
            f"resources_servers/{name}/app.py",
            f"+config_paths=[{','.join(CONFIGS)}]",
            f"+{name}.resources_servers.{name}.port={port}",
            *arguments,
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            assert wait_until(lambda: process.poll() is not None or accepts_requests(port), 90)
            yield process, port
        finally:
            process.kill()


def accepts_requests(port: int) -> bool:
    try:
        return post(port, "/seed_session", {"riddle": "piano"})[0] == 200
    except OSError:
        return False


def post(port: int, path: str, body: object, cookie: str = "") -> tuple[int, Any, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"Content-Type": "application/json", "Cookie": cookie}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        return (
            response.status,
            json.loads(response.read()),
            response.headers.get("set-cookie", "").partition(";")[0],
        )
    finally:
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_app_run_as_a_script_serves_until_it_is_stopped(
    folder: Path, endpoint: ScriptedEndpoint, number: int
) -> None:
    settings = [f"+{key}={value}" for key, value in endpoint.settings.items()]
    with served_by_itself(folder, "ledger", *settings) as (process, port):
        _, _, cookie = post(port, "/seed_session", {})
        status, balance, _ = post(port, "/book", {"amount": "7"}, cookie)
        assert (status, balance) == (200, {"balance": "$7"})
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        assert process.returncode in (0, -number)
        assert "Traceback" not in output


def test_app_run_as_a_script_reports_a_wrong_configuration_in_one_message(folder: Path) -> None:
    command = [sys.executable, "resources_servers/ledger/app.py", "+config_paths=[not_there.yaml]"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 2
    assert done.stderr.startswith("ConfigPathNotFoundError") and "Traceback" not in done.stderr
