"""Sends a finished run to every configured tracker.

Invariant: a tracker that fails or hangs costs a warning and at most its time limit; the run is not affected.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Thread

from nemo_gym.config import redact, secret_values
from nemo_gym.extras import missing_extra
from nemo_gym.terminal import one_line
from nemo_gym.trackers.mlflow import MlflowTracker, needed_modules
from nemo_gym.trackers.tracker import TrackedRun, Tracker, track
from nemo_gym.trackers.tracker_config import TrackerConfig
from nemo_gym.trackers.wandb import WandbTracker

_REMEDY = "the output files are complete; send them again with ng_aggregate_rollouts"
_LONGEST_REASON = 400


@dataclass(frozen=True)
class TimeLimit:
    """How long one tracker may take."""

    base_s: float = 120.0
    """For everything except the rollouts: importing the package, a few requests and their retries."""
    upload_bytes_per_s: float = 1e6
    """The slowest upload that does not exceed the limit."""

    def seconds(self, run: TrackedRun) -> float:
        if run.rollouts is None or run.rollouts_path is None:
            return self.base_s
        try:
            size = run.rollouts_path.stat().st_size
        except OSError:  # the upload will report it
            size = 0
        return self.base_s + size / self.upload_bytes_per_s


@dataclass(frozen=True)
class _Service:
    name: str
    modules: tuple[str, ...]
    """Modules that must be installed."""
    extra: str
    open: Callable[[float], Tracker]
    """Takes the time limit in seconds."""


def publish(config: TrackerConfig, run: TrackedRun, limit: TimeLimit | None = None) -> list[str]:
    """Send a run to every configured tracker, one after another; returns one line per tracker.

    Blocks. If a tracker fails or hangs, its line is a warning, and the next tracker follows.
    """
    limit_s = (limit or TimeLimit()).seconds(run)
    secrets = secret_values(config.model_dump())
    return [_line(service, run, limit_s, secrets) for service in _services(config)]


def warn_early(config: TrackerConfig) -> list[str]:
    """Warnings about the configuration before a run starts. Imports none of the packages."""
    return [*filter(None, map(_missing, _services(config))), *_without_effect(config)]


def _missing(service: _Service) -> str | None:
    """A warning about the first missing package; the remedy is the same for all."""
    for module in service.modules:
        if message := missing_extra(module, service.extra, f"tracking with {service.name}"):
            return f"warning: {service.name}: {message}"
    return None


def _services(config: TrackerConfig) -> Iterator[_Service]:
    if config.wandb_project:
        yield _Service("W&B", ("wandb",), "wandb", partial(WandbTracker.open, config))
    if config.mlflow_tracking_uri:
        modules = needed_modules(config.mlflow_tracking_uri)
        yield _Service("MLflow", modules, "mlflow", lambda _: MlflowTracker.open(config))


def _without_effect(config: TrackerConfig) -> Iterator[str]:
    if config.wandb_name and not config.wandb_project:
        yield "warning: W&B: wandb_name has no effect without wandb_project; set +wandb_project=<project>"
    for name in ("mlflow_experiment_name", "mlflow_run_name"):
        if getattr(config, name) and not config.mlflow_tracking_uri:
            effect = f"{name} has no effect without mlflow_tracking_uri"
            yield f"warning: MLflow: {effect}; set +mlflow_tracking_uri=<uri>"


def _line(service: _Service, run: TrackedRun, limit_s: float, secrets: Iterable[str]) -> str:
    future = _in_thread(f"{service.name} tracker", lambda: track(partial(service.open, limit_s), run))
    try:
        error = future.exception(timeout=limit_s)
    except TimeoutError:
        return _warning(service.name, f"timed out after {limit_s:.0f} s")
    if error is not None:
        return _warning(service.name, _reason(error, secrets))
    return f"{service.name}: {redact(future.result(), secrets)}"


def _in_thread(name: str, work: Callable[[], str]) -> "Future[str]":
    """Run the function in a daemon thread: if it hangs, the process can still end."""
    future: Future[str] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # also SystemExit: a library must not end the run
            future.set_exception(error)

    try:
        Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:  # the system cannot start another thread
        future.set_exception(error)
    return future


def _warning(service: str, reason: str) -> str:
    return f"warning: {service}: {reason}; {_REMEDY}"


def _reason(error: BaseException, secrets: Iterable[str]) -> str:
    """The error in one line. Secrets are removed before it is cut: a secret cut in half is not recognised."""
    text = one_line(redact(str(error), secrets)).rstrip(".") or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"
