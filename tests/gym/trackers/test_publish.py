import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from nemo_gym.trackers import AgentFigures, TimeLimit, TrackedRun, TrackerConfig, publish, warn_early
from nemo_gym.trackers.tracker import track

RUN = TrackedRun({"agent": AgentFigures({"mean/reward": 0.5}, {})}, None, None, {})
NO_WANDB = "tracking with W&B needs the package wandb; install it with: pip install -e '.[wandb]'"
NO_MLFLOW = "tracking with MLflow needs the package mlflow; install it with: pip install -e '.[mlflow]'"
BOTH = TrackerConfig(wandb_project="gym", mlflow_tracking_uri="http://127.0.0.1:5000")


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, module, None)


def test_without_a_tracker_nothing_is_sent_or_reported() -> None:
    config = TrackerConfig(wandb_api_key="0123456789")
    assert publish(config, RUN) == []
    assert warn_early(config) == []


@pytest.mark.usefixtures("nothing_installed")
def test_missing_package_is_a_warning_that_says_how_to_install_it() -> None:
    remedy = "the output files are complete; send them again with ng_aggregate_rollouts"
    assert publish(BOTH, RUN) == [
        f"warning: W&B: {NO_WANDB}; {remedy}",
        f"warning: MLflow: {NO_MLFLOW}; {remedy}",
    ]


@pytest.mark.usefixtures("nothing_installed")
def test_missing_package_is_reported_before_the_run() -> None:
    assert warn_early(BOTH) == [f"warning: W&B: {NO_WANDB}", f"warning: MLflow: {NO_MLFLOW}"]


def test_missing_package_for_a_database_is_reported_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    (warning,) = warn_early(TrackerConfig(mlflow_tracking_uri="sqlite:///mlflow.db"))
    assert "needs the package sqlalchemy; install it with: pip install -e '.[mlflow]'" in warning


def test_check_for_packages_imports_none_of_them() -> None:
    before = set(sys.modules)
    warn_early(BOTH)
    assert not {"wandb", "mlflow"} & (sys.modules.keys() - before)


def test_names_without_a_project_or_uri_are_reported_before_the_run() -> None:
    assert warn_early(TrackerConfig(wandb_name="first", mlflow_run_name="first")) == [
        "warning: W&B: wandb_name has no effect without wandb_project; set +wandb_project=<project>",
        "warning: MLflow: mlflow_run_name has no effect without mlflow_tracking_uri; "
        "set +mlflow_tracking_uri=<uri>",
    ]


def test_repr_of_the_configuration_hides_the_api_key() -> None:
    assert "0123456789" not in repr(TrackerConfig(wandb_project="gym", wandb_api_key="0123456789"))


def test_every_setting_has_a_description() -> None:
    assert all(field.description for field in TrackerConfig.model_fields.values())


def test_time_limit_grows_with_the_size_of_the_upload(tmp_path: Path) -> None:
    file = tmp_path / "rollouts.jsonl"
    file.write_bytes(b"x" * 1000)
    limit = TimeLimit(base_s=10.0, upload_bytes_per_s=100.0)
    assert limit.seconds(TrackedRun({}, [b"{}"], file, {})) == 20.0
    assert limit.seconds(TrackedRun({}, None, file, {})) == 10.0
    assert limit.seconds(TrackedRun({}, [b"{}"], tmp_path / "gone.jsonl", {})) == 10.0


class Recorder:
    """A tracker that records its calls and fails at one of them."""

    def __init__(self, fails_at: str | None = None) -> None:
        self.calls: list[str] = []
        self._fails_at = fails_at

    def log(self, run: TrackedRun) -> None:
        self._called("log")

    def upload(self, rollouts: Iterable[bytes], path: Path | None) -> None:
        self._called("upload")

    def finish(self, ok: bool) -> str:
        self._called(f"finish ok={ok}")
        return "here"

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if call == self._fails_at:
            raise OSError(f"{call} failed")


def test_rollouts_are_uploaded_only_if_the_run_has_them() -> None:
    metrics_only, everything = Recorder(), Recorder()
    assert track(lambda: metrics_only, RUN) == "here"
    track(lambda: everything, TrackedRun({}, [b"{}"], None, {}))
    assert metrics_only.calls == ["log", "finish ok=True"]
    assert everything.calls == ["log", "upload", "finish ok=True"]


def test_opened_tracker_is_finished_as_failed_after_an_error() -> None:
    tracker = Recorder(fails_at="log")
    with pytest.raises(OSError, match="log failed"):
        track(lambda: tracker, RUN)
    assert tracker.calls == ["log", "finish ok=False"]


def test_metric_names_begin_with_the_agent_and_key_metrics_have_a_prefix() -> None:
    run = TrackedRun({"a": AgentFigures({"mean/reward": 0.5}, {"mean/reward": 0.5})}, None, None, {})
    assert list(run.metrics()) == [("a/mean/reward", 0.5), ("key_metrics/a/mean/reward", 0.5)]
