"""W&B: one run, with all metrics in its first step and a table of the rollouts in its second.

Invariant: W&B gets only what is passed to it. Its own capture of the console, the code and the command line
(which may contain keys) is off, and the API key is not written to any file.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config.current import get_wandb_run
from nemo_gym.extras import load_extra
from nemo_gym.trackers.tracker import TrackedRun
from nemo_gym.trackers.tracker_config import TrackerConfig
from nemo_gym.undocumented.wandb_internals import disable_error_reports, internal_settings, quiet_terminal

TABLE = "Rollouts"
COLUMN = "Rollout"

_SETTINGS = {
    "silent": True,
    "console": "off",
    "save_code": False,
    "disable_code": True,
    "disable_git": True,
    "label_disable": True,
    "finish_timeout_raises": True,
}
_INIT_S = 30.0
"""Longest wait for the server to accept the run."""
_MAX_BYTES = 1 << 30
"""Limit of the rollouts in a table, of which W&B keeps two copies in memory."""


@contextmanager
def _arguments_hidden() -> Iterator[None]:
    """W&B records the command line in the run, and it may contain keys."""
    arguments = sys.argv
    sys.argv = arguments[:1]
    try:
        yield
    finally:
        sys.argv = arguments


class WandbTracker:
    """A new run, or an active run of the environment's code, which gets the data and stays open."""

    def __init__(self, wandb: Any, run: Any, is_own: bool) -> None:
        self._wandb = wandb
        self._run = run
        self._is_own = is_own
        self._note = "" if is_own else " (the run that was already active)"

    @classmethod
    def open(cls, config: TrackerConfig, limit_s: float) -> "WandbTracker":
        wandb = load_extra("wandb", "wandb", "tracking with W&B")
        if (active := get_wandb_run()) is not None:
            return cls(wandb, active, is_own=False)
        disable_error_reports()
        with quiet_terminal(wandb), _arguments_hidden():
            run = wandb.init(
                project=config.wandb_project,
                name=config.wandb_name or None,
                reinit="create_new",  # does not change `wandb.run`
                settings=_settings(wandb, config.wandb_api_key, limit_s),
            )
        return cls(wandb, run, is_own=True)

    def log(self, run: TrackedRun) -> None:
        if self._is_own:
            self._run.config.update(dict(run.settings))
        self._run.log(dict(_primitives(run.metrics())))

    def upload(self, rollouts: Iterable[bytes], path: Path | None) -> None:
        cells = table_cells(rollouts, self._wandb.Table.MAX_ARTIFACT_ROWS, _MAX_BYTES)
        if not cells.are_all:
            self._note += f"; only the first {len(cells.texts):,} rollouts were sent, the limit of a table"
        self._run.log({TABLE: self._wandb.Table(columns=[COLUMN], data=[[text] for text in cells.texts])})

    def finish(self, ok: bool) -> str:
        location = self._location()
        if self._is_own:
            self._run.finish(exit_code=0 if ok else 1)
        return location + self._note

    def _location(self) -> str:
        if self._run.disabled:
            return "nothing was sent: W&B is in disabled mode"
        if self._run.offline:
            folder = self._run.settings.sync_dir
            return f"offline run in {folder}; send it with: wandb sync {folder}"
        return str(self._run.url)


@dataclass(frozen=True)
class TableCells:
    """The rollouts that fit in a table."""

    texts: list[str]
    are_all: bool


def table_cells(rollouts: Iterable[bytes], max_rows: int, max_bytes: int) -> TableCells:
    """The first rollouts, as text, within both limits."""
    texts: list[str] = []
    size = 0
    for line in rollouts:
        size += len(line)
        if len(texts) == max_rows or size > max_bytes:
            return TableCells(texts, are_all=False)
        texts.append(line.decode("utf-8", "replace"))
    return TableCells(texts, are_all=True)


def _settings(wandb: Any, api_key: str | None, limit_s: float) -> Any:
    """The settings that we need; all others are the user's."""
    return wandb.Settings(
        **_SETTINGS,
        **internal_settings(),
        **({"api_key": api_key} if api_key else {}),
        init_timeout=min(_INIT_S, limit_s / 3),
        finish_timeout=limit_s / 2,
    )


def _primitives(metrics: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in metrics if isinstance(value, bool | int | float | str | None))
