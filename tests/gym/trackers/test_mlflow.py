import base64
import json
import math
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.gym.trackers.publishing import (
    REMEDY,
    ROLLOUTS,
    Published,
    publish_in_process,
    refused_address,
    serving,
    silent_server,
)

METRICS = {
    "mean/reward": 0.5,
    "mean": 0.25,
    "is_good": True,
    "is_bad": False,
    "note": "fine",
    "missing": None,
    "not_a_number": math.nan,
    "endless": math.inf,
    "beyond_a_float": 10**400,
    "pass@1[avg-of-4]/accuracy": 0.75,
    "pass@1": 3,
    "pass_at_1": 4,
    "é ☃": 1,
    "x" * 300: 5,
    "../../elsewhere": 6,
    "histogram": [1, 2, 3],
}
FILE = "".join(f"{line}\n" for line in ROLLOUTS)


def publication(**changes: Any) -> dict[str, Any]:
    return {
        "agents": {"agent": [METRICS, {"mean/reward": 0.5}]},
        "settings": {
            "limit": 3,
            "responses_create_params": {"temperature": 0.7},
            "num_repeats": {},
            "long": "y" * 1000,
        },
        "rollouts": ROLLOUTS,
        **changes,
    }


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """Two runs in a database and one in a folder, with rollouts from a file, without any, and from memory."""
    folder = tmp_path_factory.mktemp("mlflow")
    (folder / "math.jsonl").write_text(FILE)
    database = {"mlflow_tracking_uri": "sqlite:///runs.db", "mlflow_experiment_name": "gym"}
    return publish_in_process(
        folder,
        publication(config={**database, "mlflow_run_name": "first"}, rollouts_path="math.jsonl"),
        publication(config=database, rollouts=None, read_mlflow=True),
        publication(config={"mlflow_tracking_uri": str(folder / "runs")}, read_mlflow=True),
    )


def test_numbers_become_metrics_with_names_that_mlflow_accepts(stored: Published) -> None:
    for result in stored.results[1:]:
        metrics = result["mlflow"][-1]["metrics"]
        (cut,) = (name for name in metrics if name.startswith("agent/xxx"))
        (second,) = (name for name in metrics if name.startswith("agent/pass_at_1-"))
        assert len(cut) == 250
        assert metrics == {
            "agent/mean": 0.25,
            "agent/mean.reward": 0.5,
            "key_metrics/agent/mean/reward": 0.5,
            "agent/is_good": 1.0,
            "agent/is_bad": 0.0,
            "agent/pass_at_1.avg-of-4/accuracy": 0.75,
            "agent/pass_at_1": 4.0,
            second: 3.0,
            "agent/é _": 1.0,
            cut: 5.0,
            "agent/__/__/elsewhere": 6.0,
        }


def test_text_becomes_tags_and_settings_become_parameters(stored: Published) -> None:
    for result in stored.results[1:]:
        run = result["mlflow"][-1]
        assert run["tags"] == {"agent/note": "fine"}
        assert run["params"] == {
            "limit": "3",
            "responses_create_params.temperature": "0.7",
            "num_repeats": "{}",
            "long": "y" * 500,
        }


def test_rollouts_are_uploaded_as_an_artifact_on_request(stored: Published) -> None:
    of_database = {run["name"]: run["files"] for run in stored.results[1]["mlflow"]}
    assert of_database.pop("first") == {"rollouts/math.jsonl": FILE}
    assert list(of_database.values()) == [{}]
    (of_folder,) = stored.results[2]["mlflow"]
    assert of_folder["files"] == {"rollouts/rollouts.jsonl": FILE}


def test_experiment_is_created_once_and_every_run_is_finished(stored: Published) -> None:
    runs = stored.results[1]["mlflow"]
    assert [run["experiment"] for run in runs] == ["gym", "gym"]
    assert {run["status"] for run in runs} == {"FINISHED"}
    assert stored.results[2]["mlflow"][0]["experiment"] == "Default"


def test_returned_line_says_where_the_run_is_and_nothing_is_printed(stored: Published) -> None:
    (line,) = stored.results[0]["lines"]
    assert line.startswith("MLflow: sqlite:///runs.db, experiment gym, run first (")
    assert stored.stdout == ""
    assert stored.stderr == ""


def test_environment_variables_of_mlflow_are_restored(stored: Published) -> None:
    assert all(result["variables_are_restored"] for result in stored.results)


def test_unreachable_server_is_a_warning(tmp_path: Path) -> None:
    with refused_address() as refused, silent_server() as silent:
        published = publish_in_process(
            tmp_path,
            publication(config={"mlflow_tracking_uri": "bogus://x"}),
            publication(config={"mlflow_tracking_uri": f"http://user:hunter2hunter2@{refused}"}),
            publication(config={"mlflow_tracking_uri": f"http://{silent}"}, limit_s=2.0),
        )
    lines = [line for result in published.results for line in result["lines"]]
    assert all(line.startswith("warning: MLflow: ") and line.endswith(REMEDY) for line in lines)
    assert "unsupported URI 'bogus://x'" in lines[0]
    assert "Connection refused" in lines[1]
    assert "****@127.0.0.1" in lines[1]
    assert "hunter2hunter2" not in "".join(lines) + published.stdout + published.stderr
    assert lines[2] == f"warning: MLflow: timed out after 2 s{REMEDY}"
    assert published.stdout == ""


class Server(ThreadingHTTPServer):
    """The parts of a tracking server that a run needs. It may refuse uploads."""

    def __init__(self, takes_uploads: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.takes_uploads = takes_uploads
        self.requests: list[tuple[str, bytes]] = []
        """Path and body of each request, in order."""
        self.authorizations: set[str | None] = set()

    def bodies(self, ending: str) -> list[Any]:
        return [json.loads(body) for path, body in self.requests if path.endswith(ending)]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._respond(b"")

    def do_POST(self) -> None:
        self._respond(self.rfile.read(int(self.headers["Content-Length"] or 0)))

    do_PUT = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _respond(self, body: bytes) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append((path, body))
        self.server.authorizations.add(self.headers["Authorization"])
        is_refused = "/mlflow-artifacts/" in path and not self.server.takes_uploads
        responses = _responses(f"run{self.server.server_port}")
        data = json.dumps(responses.get(path.rpartition("/mlflow/")[2], {})).encode()
        self.send_response(403 if is_refused else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _responses(run_id: str) -> dict[str, Any]:
    info = {
        "run_id": run_id,
        "run_uuid": run_id,
        "run_name": "calm-crane",
        "experiment_id": "7",
        "status": "RUNNING",
        "artifact_uri": f"mlflow-artifacts:/7/{run_id}/artifacts",
        "lifecycle_stage": "active",
    }
    run = {"run": {"info": info, "data": {}}}
    experiment = {"experiment": {"experiment_id": "7", "name": "gym", "lifecycle_stage": "active"}}
    return {
        "experiments/get-by-name": experiment,
        "runs/create": run,
        "runs/get": run,
        "runs/update": {"run_info": info},
    }


def test_tracking_server_gets_batches_the_file_and_the_final_status(tmp_path: Path) -> None:
    many = {"agent": [{f"metric_{number}": number for number in range(1500)}, {}]}
    settings = {f"setting_{number}": number for number in range(150)}
    server, refusing = Server(takes_uploads=True), Server(takes_uploads=False)
    with serving(server), serving(refusing):
        address = f"user:hunter2hunter2@127.0.0.1:{server.server_port}"
        published = publish_in_process(
            tmp_path,
            publication(
                config={"mlflow_tracking_uri": f"http://{address}", "mlflow_experiment_name": "gym"},
                agents=many,
                settings=settings,
            ),
            publication(config={"mlflow_tracking_uri": f"http://127.0.0.1:{refusing.server_port}"}),
        )
    good, refused = published.results
    batches = server.bodies("/runs/log-batch")
    run, place = f"run{server.server_port}", f"http://****@127.0.0.1:{server.server_port}"
    upload = f"/api/2.0/mlflow-artifacts/artifacts/7/{run}/artifacts/rollouts/rollouts.jsonl"
    assert good["lines"] == [f"MLflow: {place}, experiment gym, run calm-crane ({run})"]
    assert [len(batch.get("metrics", [])) for batch in batches] == [0, 0, 1000, 500]
    assert [len(batch.get("params", [])) for batch in batches] == [100, 50, 0, 0]
    assert dict(server.requests)[upload] == FILE.encode()
    assert server.bodies("/runs/update")[-1]["status"] == "FINISHED"
    assert f"Basic {base64.b64encode(b'user:hunter2hunter2').decode()}" in server.authorizations
    assert "403" in refused["lines"][0]
    assert refused["lines"][0].endswith(REMEDY)
    assert refusing.bodies("/runs/update")[-1]["status"] == "FAILED"
    assert published.stdout == ""
    assert published.stderr == ""
