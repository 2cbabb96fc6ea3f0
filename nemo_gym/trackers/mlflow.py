"""MLflow: one run with metrics, tags for what is text, the settings as parameters, the rollouts as a file.

MLflow's patience is set through environment variables alone. They are changed while one of our calls lasts,
and only where the user has not set them.
"""

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from nemo_gym.extras import load_extra
from nemo_gym.trackers.names import allowed_names
from nemo_gym.trackers.tracker import TrackedRun
from nemo_gym.trackers.tracker_config import TrackerConfig

ARTIFACT_FOLDER = "rollouts"
DEFAULT_EXPERIMENT = "Default"

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_METRICS_A_BATCH = 1000
_TEXTS_A_BATCH = 100
_LONGEST_TEXT = 500
"""Characters of a parameter or tag that every server takes, a whole batch of them too."""
_REQUEST_S = 10
_UPLOAD_S = 60
"""Longest wait for an answer once all is sent: the server may pass a file on before it answers."""

Item = TypeVar("Item")


def needed_modules(tracking_uri: str) -> tuple[str, ...]:
    """What must be installed to reach this place."""
    is_database = tracking_uri.startswith(_DATABASES)
    return ("mlflow", "sqlalchemy", "alembic") if is_database else ("mlflow",)


class MlflowTracker:
    """A run that was started at its tracking server or store."""

    def __init__(self, mlflow: Any, client: Any, run: Any, place: str) -> None:
        self._mlflow = mlflow
        self._client = client
        self._run_id = run.info.run_id
        self._place = place

    @classmethod
    def open(cls, config: TrackerConfig) -> "MlflowTracker":
        mlflow = load_extra("mlflow", "mlflow", "tracking with MLflow")
        experiment = config.mlflow_experiment_name or DEFAULT_EXPERIMENT
        with _impatient(mlflow, _REQUEST_S):
            client = mlflow.MlflowClient(tracking_uri=config.mlflow_tracking_uri)
            run = client.create_run(
                _experiment_id(mlflow, client, experiment), run_name=config.mlflow_run_name or None
            )
        name = f"run {run.info.run_name} ({run.info.run_id})"
        return cls(mlflow, client, run, f"{config.mlflow_tracking_uri}, experiment {experiment}, {name}")

    def log(self, run: TrackedRun) -> None:
        entities = self._mlflow.entities
        now_ms = int(time.time() * 1000)
        metrics = dict(run.metrics())
        numbers = _renamed(metrics, _number)
        texts = _renamed(metrics, lambda value: value if isinstance(value, str) else None)
        settings = _renamed(dict(_flat(run.settings)), _text)
        with _impatient(self._mlflow, _REQUEST_S):
            for some in _batches(settings, _TEXTS_A_BATCH):
                self._log(params=[entities.Param(name, text[:_LONGEST_TEXT]) for name, text in some])
            for some in _batches(texts, _TEXTS_A_BATCH):
                self._log(tags=[entities.RunTag(name, text[:_LONGEST_TEXT]) for name, text in some])
            for batch in _batches(numbers, _METRICS_A_BATCH):
                self._log(metrics=[entities.Metric(name, value, now_ms, 0) for name, value in batch])

    def upload(self, rollouts: Iterable[bytes], path: Path | None) -> None:
        with _impatient(self._mlflow, _UPLOAD_S), _file_with(rollouts, path) as file:
            self._client.log_artifact(self._run_id, str(file), ARTIFACT_FOLDER)

    def finish(self, ok: bool) -> str:
        with _impatient(self._mlflow, _REQUEST_S):
            self._client.set_terminated(self._run_id, "FINISHED" if ok else "FAILED")
        return self._place

    def _log(self, **batch: list[Any]) -> None:
        self._client.log_batch(self._run_id, **batch, synchronous=True)


def _experiment_id(mlflow: Any, client: Any, name: str) -> Any:
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name)
        except mlflow.MlflowException:  # another run may have made it meanwhile
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return found.experiment_id


def _renamed(values: Mapping[str, Any], as_kind: Callable[[Any], Item | None]) -> dict[str, Item]:
    """Those values that are of a kind, under names that MLflow takes."""
    kept = {name: item for name, value in values.items() if (item := as_kind(value)) is not None}
    names = allowed_names(kept)
    return {names[name]: item for name, item in kept.items()}


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`{a: {b: 1}}` → `a.b`, so that runs can be compared by it."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _batches(values: Mapping[str, Item], most: int) -> Iterator[list[tuple[str, Item]]]:
    items = iter(values.items())
    while batch := list(islice(items, most)):
        yield batch


@contextmanager
def _file_with(rollouts: Iterable[bytes], path: Path | None) -> Iterator[Path]:
    """The file that holds the rollouts; where there is none, one that is there meanwhile."""
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rollouts.jsonl")
        with file.open("wb") as output:
            output.writelines(line + b"\n" for line in rollouts)
        yield file


@contextmanager
def _impatient(mlflow: Any, timeout_s: int) -> Iterator[None]:
    """Calls that give up within half a minute or so, and say nothing on the terminal."""
    wanted = {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": timeout_s,
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": 2,
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": 1,
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": True,
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": False,
        "MLFLOW_ALLOW_FILE_STORE": True,  # whoever names a folder wants one
    }
    known = {getattr(mlflow.environment_variables, name, None): value for name, value in wanted.items()}
    ours = {variable: value for variable, value in known.items() if variable and not variable.is_set()}
    for variable, value in ours.items():
        variable.set(value)
    try:
        with load_extra("mlflow.utils.logging_utils", "mlflow", "MLflow").suppress_logs_in_thread():
            yield
    finally:
        for variable in ours:
            variable.unset()
