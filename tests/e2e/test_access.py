"""Servers that other machines can reach need a token, which commands on this machine find by themselves."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import HeadServerUnreachableError
from nemo_gym.http import request
from nemo_gym.server_utils import ServerClient
from tests.support.collecting import CALCULATOR, MODEL, CollectionRuns
from tests.support.commands import ROOT, NgRun, children_of, run_command

BEYOND = {"default_host": "0.0.0.0", "head_server.host": "0.0.0.0"}
AGENT = "calculator_simple_agent"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "nemo_gym"


def served_settings(head: BaseServerConfig) -> dict[str, object]:
    return {"hosting": "served", "head_server.port": head.port}


async def status_without_token(head: BaseServerConfig) -> int:
    return (await request("GET", f"http://127.0.0.1:{head.port}/server_instances")).status


def test_servers_beyond_this_machine_serve_only_those_who_have_the_token(
    runs: CollectionRuns, cache: Path
) -> None:
    with NgRun([CALCULATOR, MODEL], {**runs.endpoint.settings, **BEYOND}) as served:
        [file] = (cache / "access").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        token = json.loads(file.read_text())["token"]
        assert str(file) in served.output
        assert asyncio.run(status_without_token(served.head)) == 401
        arguments = runs.arguments(**served_settings(served.head))
        collected = run_command("ng_collect_rollouts", *arguments, cwd=runs.folder)
        assert collected.returncode == 0, collected.stderr
        runs.check_complete()
        status = run_command("ng_status", f"+head_server.port={served.head.port}")
        assert status.returncode == 0 and "policy_model" in status.stdout, status.stderr
        processes = subprocess.run(["ps", "-Aww", "-o", "args="], capture_output=True, text=True, check=True)
        kept = [path for path in runs.folder.rglob("*") if path.is_file() and path != file]
        texts = [path.read_text(errors="replace") for path in kept]
        for text in (
            *texts,
            processes.stdout,
            served.output,
            collected.stdout,
            collected.stderr,
            status.stdout,
        ):
            assert token not in text
    assert not file.exists()


def test_command_on_another_machine_passes_the_token(
    runs: CollectionRuns, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = "a-token-that-both-sides-know"
    monkeypatch.setenv("NEMO_GYM_ACCESS_TOKEN", token)
    with NgRun([CALCULATOR, MODEL], {**runs.endpoint.settings, **BEYOND}) as served:
        assert token not in served.output
        for pid in children_of(served.process.pid):
            assert token.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other machine"))
        settings = {**served_settings(served.head), "executor": "processes", "num_workers": 2}
        collected = run_command("ng_collect_rollouts", *runs.arguments(**settings), cwd=runs.folder)
        assert collected.returncode == 0, collected.stderr
        runs.check_complete()
        monkeypatch.delenv("NEMO_GYM_ACCESS_TOKEN")
        with pytest.raises(HeadServerUnreachableError, match="NEMO_GYM_ACCESS_TOKEN"):
            ServerClient.load_from_global_config(served.head)
        client = ServerClient.load_from_global_config(served.head, access_token=token)
        response = asyncio.run(client.post("calculator", "/calculator", json={"expression": "6*7"}))
        assert response.status == 200


def test_server_started_by_itself_beyond_this_machine_needs_a_given_token() -> None:
    app = ROOT / "resources_servers/calculator/app.py"
    ran = subprocess.run(
        [sys.executable, str(app), f"+config_paths=[{CALCULATOR},{MODEL}]", "+default_host=0.0.0.0"]
        + [
            f"+{name}=http://127.0.0.1:1"
            for name in ("policy_base_url", "policy_api_key", "policy_model_name")
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 2
    assert "HostingError: servers on 0.0.0.0 can be reached from other machines" in ran.stderr
    assert "NEMO_GYM_ACCESS_TOKEN" in ran.stderr
