"""MLflow: one run with numbers as metrics, text as tags, settings as parameters, and the rollouts as a file.

MLflow reads its timeouts from environment variables only. They are set during each call, unless the user has
set them.
"""

import json
import logging
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from nemo_gym.environment_variables import variables_set
from nemo_gym.extras import load_extra
from nemo_gym.trackers.names import allowed_names
from nemo_gym.trackers.tracker import TrackedRun
from nemo_gym.trackers.tracker_config import TrackerConfig

ARTIFACT_FOLDER = "rollouts"
DEFAULT_EXPERIMENT = "Default"

_LOGGERS = ("mlflow", "alembic", "sqlalchemy.engine")
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_METRICS_PER_BATCH = 1000
_TEXTS_PER_BATCH = 100
_LONGEST_TEXT = 500
"""Longer parameters and tags are cut to this number of characters, which every server accepts."""
_REQUEST_S = 10
_UPLOAD_S = 60
"""Longest wait for the response once a file is sent: the server may pass it on before it responds."""

Item = TypeVar("Item")


def needed_modules(tracking_uri: str) -> tuple[str, ...]:
    """The packages needed for this tracking URI."""
    is_database = tracking_uri.startswith(_DATABASES)
    return ("mlflow", "sqlalchemy", "alembic") if is_database else ("mlflow",)


class MlflowTracker:
    """A run on a tracking server, in a database or in a folder."""

    def __init__(self, mlflow: Any, client: Any, run: Any, location: str) -> None:
        self._mlflow = mlflow
        self._client = client
        self._run_id = run.info.run_id
        self._location = location

    @classmethod
    def open(cls, config: TrackerConfig) -> "MlflowTracker":
        mlflow = load_extra("mlflow", "mlflow", "tracking with MLflow")
        experiment = config.mlflow_experiment_name or DEFAULT_EXPERIMENT
        with _short_calls(_REQUEST_S):
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
        with _short_calls(_REQUEST_S):
            for batch in _batches(settings, _TEXTS_PER_BATCH):
                self._log(params=[entities.Param(name, text[:_LONGEST_TEXT]) for name, text in batch])
            for batch in _batches(texts, _TEXTS_PER_BATCH):
                self._log(tags=[entities.RunTag(name, text[:_LONGEST_TEXT]) for name, text in batch])
            for values in _batches(numbers, _METRICS_PER_BATCH):
                self._log(metrics=[entities.Metric(name, value, now_ms, 0) for name, value in values])

    def upload(self, rollouts: Iterable[bytes], path: Path | None) -> None:
        with _short_calls(_UPLOAD_S), _file_with(rollouts, path) as file:
            self._client.log_artifact(self._run_id, str(file), ARTIFACT_FOLDER)

    def finish(self, ok: bool) -> str:
        with _short_calls(_REQUEST_S):
            self._client.set_terminated(self._run_id, "FINISHED" if ok else "FAILED")
        return self._location

    def _log(self, **batch: list[Any]) -> None:
        self._client.log_batch(self._run_id, **batch, synchronous=True)


def _experiment_id(mlflow: Any, client: Any, name: str) -> Any:
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name)
        except mlflow.MlflowException:  # another run may have created it in the meantime
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return found.experiment_id


def _renamed(values: Mapping[str, Any], as_kind: Callable[[Any], Item | None]) -> dict[str, Item]:
    """The values of one kind, under names that MLflow accepts."""
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
    """`{a: {b: 1}}` → `a.b: 1`. MLflow can compare runs by flat parameters."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _batches(values: Mapping[str, Item], size: int) -> Iterator[list[tuple[str, Item]]]:
    items = iter(values.items())
    while batch := list(islice(items, size)):
        yield batch


@contextmanager
def _file_with(rollouts: Iterable[bytes], path: Path | None) -> Iterator[Path]:
    """The file that holds the rollouts; a temporary one if there is none."""
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rollouts.jsonl")
        with file.open("wb") as output:
            output.writelines(line + b"\n" for line in rollouts)
        yield file


@contextmanager
def _short_calls(timeout_s: int) -> Iterator[None]:
    """Make MLflow's calls fail within about half a minute and print nothing."""
    settings = {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": timeout_s,
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": 2,
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": 1,
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": True,
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": False,
        "MLFLOW_ALLOW_FILE_STORE": True,  # needed if the tracking URI is a folder
    }
    with variables_set({name: str(value) for name, value in settings.items()}), _quiet_logs():
        yield


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Suppress the log lines of MLflow and its database libraries in this thread."""
    thread = threading.get_ident()

    def is_shown(record: logging.LogRecord) -> bool:
        return record.thread != thread

    handlers = {handler for name in _LOGGERS for handler in logging.getLogger(name).handlers}
    for handler in handlers:
        handler.addFilter(is_shown)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_shown)
