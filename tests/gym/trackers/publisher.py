"""A process that publishes runs with the real libraries and reads back what was stored.

The first argument has the publications as JSON; the second is the file for the results. The process itself
prints nothing.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_gym.trackers import AgentFigures, TimeLimit, TrackedRun, TrackerConfig, publish

_BLOCK = 32768
_HEADER = 7


def published(publication: dict[str, Any]) -> dict[str, Any]:
    active = _active_wandb_run() if publication.get("active_run") else None
    before = _mlflow_variables()
    lines = publish(
        TrackerConfig(**publication["config"]),
        _tracked(publication),
        TimeLimit(base_s=publication.get("limit_s", 120.0)),
    )
    result: dict[str, Any] = {"lines": lines}
    result["variables_are_restored"] = _mlflow_variables() == before
    if active is not None:
        import wandb

        result["active_run_is_open"] = wandb.run is active
        active.finish()
    if publication.get("read_wandb"):
        import wandb

        wandb.teardown()  # waits for W&B's own process, which writes the run to disk
        result["wandb"] = [_offline_run(folder) for folder in sorted(Path("wandb").glob("offline-run-*"))]
    if publication.get("read_mlflow"):
        result["mlflow"] = list(_mlflow_runs(publication["config"]["mlflow_tracking_uri"]))
    return result


def _tracked(publication: dict[str, Any]) -> TrackedRun:
    agents = {name: AgentFigures(*figures) for name, figures in publication.get("agents", {}).items()}
    rollouts = publication.get("rollouts")
    path = publication.get("rollouts_path")
    return TrackedRun(
        agents,
        None if rollouts is None else [line.encode() for line in rollouts],
        None if path is None else Path(path),
        publication.get("settings", {}),
    )


def _mlflow_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_")}


def _active_wandb_run() -> Any:
    import wandb

    return wandb.init(project="of_the_environment", settings=wandb.Settings(silent=True, console="off"))


def _offline_run(folder: Path) -> dict[str, Any]:
    """The content of an offline run: values of its steps, configuration, tables, exit code."""
    (file,) = folder.glob("*.wandb")
    run: dict[str, Any] = {"folder": str(folder.resolve()), "steps": [], "config": {}}
    for record in _records(file.read_bytes()):
        if record.HasField("run"):
            run["project"], run["name"] = record.run.project, record.run.display_name
        elif record.HasField("config"):
            run["config"] |= {item.key: json.loads(item.value_json) for item in record.config.update}
        elif record.HasField("history"):
            items = {"/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            run["steps"].append({name: value for name, value in items.items() if not name.startswith("_")})
        elif record.HasField("exit"):
            run["exit_code"] = record.exit.exit_code
    run["tables"] = {
        file.name.partition("_")[0]: json.loads(file.read_text())
        for file in folder.glob("files/media/table/*.json")
    }
    return run


def _records(data: bytes) -> Iterator[Any]:
    """The records of a .wandb file: protocol buffers in LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    position, whole = _HEADER, b""
    while position + _HEADER <= len(data):
        left = _BLOCK - position % _BLOCK
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        if left < _HEADER or kind == 0:
            position += left
            continue
        position += _HEADER
        whole += data[position : position + length]
        position += length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(whole)
            whole = b""


def _mlflow_runs(uri: str) -> Iterator[dict[str, Any]]:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
            yield {
                "experiment": experiment.name,
                "name": run.info.run_name,
                "status": run.info.status,
                "metrics": run.data.metrics,
                "params": run.data.params,
                "tags": {name: tag for name, tag in run.data.tags.items() if not name.startswith("mlflow.")},
                "files": {
                    str(file.relative_to(artifacts)): file.read_text()
                    for file in artifacts.rglob("*")
                    if file.is_file()
                },
            }
    del os.environ["MLFLOW_ALLOW_FILE_STORE"]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps([published(each) for each in json.loads(sys.argv[1])]))
