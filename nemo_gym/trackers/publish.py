"""Sends a finished run to every configured tracker.

Invariant: what a tracker does, or fails to do, costs one line and at most its time limit; never the run.
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

_WHAT_NOW = "the files are complete, send them again with ng_aggregate_rollouts"
_LONGEST_REASON = 400


@dataclass(frozen=True)
class TimeLimit:
    """How long one tracker may take."""

    base_s: float = 120.0
    """For all but the rollouts: loading the package, a few requests, and their second tries."""
    upload_bytes_per_s: float = 1e6
    """The slowest upload that is still waited for."""

    def seconds(self, run: TrackedRun) -> float:
        if run.rollouts is None or run.rollouts_path is None:
            return self.base_s
        try:
            size = run.rollouts_path.stat().st_size
        except OSError:  # whoever reads the file will say so
            size = 0
        return self.base_s + size / self.upload_bytes_per_s


@dataclass(frozen=True)
class _Service:
    name: str
    modules: tuple[str, ...]
    """Those that must be installed."""
    extra: str
    open: Callable[[float], Tracker]
    """Takes the seconds that all of it may take."""


def publish(config: TrackerConfig, run: TrackedRun, limit: TimeLimit | None = None) -> list[str]:
    """Send a run to every configured tracker, one after another; gives one line for each.

    Blocks. A tracker that fails or hangs is a warning, and the next one has its turn.
    """
    limit_s = (limit or TimeLimit()).seconds(run)
    secrets = secret_values(config.model_dump())
    return [_line(service, run, limit_s, secrets) for service in _services(config)]


def warn_early(config: TrackerConfig) -> list[str]:
    """What can be said against the configuration before a run starts; loads none of the packages."""
    return [*filter(None, map(_missing, _services(config))), *_without_effect(config)]


def _missing(service: _Service) -> str | None:
    """The first of its packages that is not installed: the remedy is the same for all."""
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
    outcome = _in_thread(f"{service.name} tracker", lambda: track(partial(service.open, limit_s), run))
    try:
        error = outcome.exception(timeout=limit_s)
    except TimeoutError:
        return _warning(service.name, f"not done within {limit_s:.0f} s")
    if error is not None:
        return _warning(service.name, _reason(error, secrets))
    return f"{service.name}: {redact(outcome.result(), secrets)}"


def _in_thread(name: str, work: Callable[[], str]) -> "Future[str]":
    """Do it in a thread that can be left behind: it keeps no process from ending."""
    outcome: Future[str] = Future()

    def settle() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # a library that wants to exit does so in its own thread only
            outcome.set_exception(error)

    try:
        Thread(target=settle, name=name, daemon=True).start()
    except RuntimeError as error:  # the system has no thread left
        outcome.set_exception(error)
    return outcome


def _warning(service: str, reason: str) -> str:
    return f"warning: {service}: {reason}; {_WHAT_NOW}"


def _reason(error: BaseException, secrets: Iterable[str]) -> str:
    """One line of it; cut only when it holds no secret any more, which half a secret would not show."""
    text = one_line(redact(str(error), secrets)).rstrip(".") or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"
