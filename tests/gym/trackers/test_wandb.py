import json
import math
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nemo_gym.global_config import get_wandb_run
from nemo_gym.trackers.wandb import TableCells, table_cells
from tests.gym.trackers.publishing import (
    API_KEY,
    REMEDY,
    ROLLOUTS,
    Published,
    files_with,
    publish_in_process,
    refused_address,
    serving,
    silent_server,
)

CONFIG = {"wandb_project": "gym", "wandb_name": "first", "wandb_api_key": API_KEY}
METRICS = {
    "mean/reward": 0.5,
    "count": 2,
    "is_good": True,
    "note": "fine",
    "missing": None,
    "not_a_number": math.nan,
    "pass@1[avg-of-4]/accuracy": 0.25,
    "é ☃": 1,
    "x" * 300: 3,
    "histogram": [1, 2, 3],
    "nested": {"a": 1},
}
LOGGED = {name: value for name, value in METRICS.items() if not isinstance(value, list | dict)}
OFFLINE = {"WANDB_MODE": "offline"}


def publication(**changes: Any) -> dict[str, Any]:
    return {
        "config": CONFIG,
        "agents": {"math_agent": [METRICS, {"mean/reward": 0.5}], "other": [{"mean/reward": 0}, {}]},
        "settings": {"limit": None, "responses_create_params": {"temperature": 0.7}},
        "rollouts": ROLLOUTS,
        **changes,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("offline")


@pytest.fixture(scope="module")
def offline(folder: Path) -> Published:
    """A run with rollouts, published in offline mode."""
    return publish_in_process(folder, publication(read_wandb=True), env=OFFLINE)


def test_primitive_metrics_are_one_step_and_named_by_agent(offline: Published) -> None:
    (run,) = offline.result["wandb"]
    step = run["steps"][0]
    expected = {f"math_agent/{name}": value for name, value in LOGGED.items()}
    expected |= {"key_metrics/math_agent/mean/reward": 0.5, "other/mean/reward": 0}
    assert math.isnan(step.pop("math_agent/not_a_number"))
    assert step == {name: value for name, value in expected.items() if name != "math_agent/not_a_number"}


def test_the_rollouts_are_a_table_of_json_lines(offline: Published) -> None:
    (run,) = offline.result["wandb"]
    assert run["tables"] == {"Rollouts": {"columns": ["Rollout"], "data": [[line] for line in ROLLOUTS]}}
    assert "Rollouts/_type" in run["steps"][1]


def test_run_has_its_names_settings_and_exit_code(offline: Published) -> None:
    (run,) = offline.result["wandb"]
    assert (run["project"], run["name"], run["exit_code"]) == ("gym", "first", 0)
    assert run["config"]["responses_create_params"] == {"temperature": 0.7}
    assert run["config"]["limit"] is None


def test_line_of_an_offline_run_says_how_to_send_it(offline: Published) -> None:
    path = offline.result["wandb"][0]["folder"]
    assert offline.result["lines"] == [f"W&B: offline run in {path}; send it with: wandb sync {path}"]
    assert offline.stdout == ""
    assert offline.stderr == ""


def test_api_key_is_not_written_to_any_file(folder: Path, offline: Published) -> None:
    assert files_with(folder, API_KEY) == []
    assert files_with(folder, "math_agent/mean/reward")  # the search does find text in the files


def test_active_run_gets_the_data_and_stays_open(tmp_path: Path) -> None:
    published = publish_in_process(
        tmp_path, publication(active_run=True, rollouts=None, read_wandb=True), env=OFFLINE
    )
    (run,) = published.result["wandb"]
    assert published.result["active_run_is_open"]
    assert run["project"] == "of_the_environment"
    assert run["steps"][0]["other/mean/reward"] == 0
    assert "responses_create_params" not in run["config"]
    assert run["tables"] == {}  # the upload of rollouts is off
    assert published.result["lines"][0].endswith("(the run that was already active)")


def test_refused_run_is_a_warning_with_the_reason(tmp_path: Path) -> None:
    with refused_address() as address:
        published = publish_in_process(
            tmp_path,
            publication(config={"wandb_project": "a/b", "wandb_api_key": API_KEY}),
            publication(config={"wandb_project": "gym"}),
            publication(config={"wandb_project": "gym", "wandb_api_key": "wrong-key"}),
            publication(),
            env={"WANDB_BASE_URL": f"http://{address}"},
        )
    bad_name, no_key, bad_key, down = (line for result in published.results for line in result["lines"])
    assert bad_name.startswith("warning: W&B: Invalid project name 'a/b'")
    assert no_key == f"warning: W&B: No API key configured. Use `wandb login` to log in{REMEDY}"
    assert bad_key.startswith("warning: W&B: ")
    assert down.startswith("warning: W&B: ")
    assert "connection refused" in down
    assert down.endswith(REMEDY)
    everything = json.dumps(published.results) + published.stdout + published.stderr
    assert "wrong-key" not in everything
    assert API_KEY not in everything
    assert files_with(tmp_path, API_KEY) == []
    assert published.stdout == ""


class Service(BaseHTTPRequestHandler):
    """The parts of W&B's service that a run without a table needs."""

    authorizations: ClassVar[set[str | None]] = set()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.authorizations.add(self.headers["Authorization"])
        data = json.dumps(self._response(json.loads(body)) if self.path == "/graphql" else {}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_PUT = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _response(self, query: dict[str, Any]) -> dict[str, Any]:
        variables = query.get("variables", {})
        if query["operationName"] == "CreateRunFiles":
            url = f"http://{self.headers['Host']}/upload/"
            files = [{"name": name, "uploadUrl": url + name} for name in variables["files"]]
            return {"data": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}}
        if query["operationName"] == "UpsertBucket":
            project = {"id": "2", "name": variables["project"], "entity": {"id": "3", "name": "team"}}
            run = {"id": "1", "name": variables["name"], "displayName": "first", "project": project}
            return {"data": {"upsertBucket": {"bucket": run, "inserted": True}}}
        return {"data": {}}


@pytest.mark.fast_path  # without it, W&B prints lines about the login
def test_line_of_an_online_run_has_its_address(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    address = f"http://127.0.0.1:{server.server_port}"
    with serving(server):
        published = publish_in_process(
            tmp_path,
            publication(config={"wandb_project": "gym"}, rollouts=None),
            env={"WANDB_BASE_URL": address, "WANDB_API_KEY": API_KEY},
        )
    (line,) = published.result["lines"]
    assert line.startswith(f"W&B: {address}/team/gym/runs/")
    assert f"Basic {b64encode(f'api:{API_KEY}'.encode()).decode()}" in Service.authorizations
    assert published.stdout == ""
    assert published.stderr == ""


def test_server_that_never_responds_is_a_warning_and_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    with silent_server() as address:
        published = publish_in_process(
            tmp_path, publication(limit_s=4.0), env={"WANDB_BASE_URL": f"http://{address}"}
        )
    (line,) = published.result["lines"]
    assert line.startswith("warning: W&B: ")
    assert line.endswith(REMEDY)
    assert len(published.stderr.splitlines()) <= 2


def test_table_has_the_first_rollouts_within_its_limits() -> None:
    lines = [b"aa", b"bb", b"c\xff"]
    assert table_cells(lines, max_rows=3, max_bytes=6) == TableCells(["aa", "bb", "c\ufffd"], are_all=True)
    assert table_cells(lines, max_rows=2, max_bytes=6) == TableCells(["aa", "bb"], are_all=False)
    assert table_cells(lines, max_rows=3, max_bytes=3) == TableCells(["aa"], are_all=False)


def test_no_run_is_active_if_wandb_was_never_imported() -> None:
    assert get_wandb_run() is None
