"""`ng_export`."""

import sys

from nemo_gym.analysis.rollout_export import export_rollouts
from nemo_gym.cli.command import Command
from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.records import BadLines
from nemo_gym.terminal import counted


class ExportConfig(BaseNeMoGymCLIConfig):
    input_fpath: str
    """A file of rollouts (`.jsonl`), or a Parquet file (`.parquet`) that came from one."""
    output_fpath: str
    """Where they go, in the form that the ending names. To `.parquet`: a row a rollout, with the column
    `transcript`. From `.jsonl` to `.jsonl`: with the older, chat-style `output`. From `.parquet` to `.jsonl`:
    the lines as they were. Missing folders are created, an older file is replaced; must not be the input."""
    skip_bad_lines: bool = False
    """Leave out lines that are no rollouts, and rollouts whose key stands in an earlier line, and say which.
    Else the first of them ends the command."""
    include_json: bool = True
    """Whether a Parquet file gets the column `rollout_json`, the whole line; without it there is no way
    back."""


def run(config: GymConfig, options: ExportConfig) -> int:
    bad_lines = BadLines(options.skip_bad_lines)
    done = export_rollouts(
        options.input_fpath, options.output_fpath, bad_lines, include_json=options.include_json
    )
    for line in bad_lines.told():
        print(line, file=sys.stderr)
    columns = "" if done.columns is None else f" ({counted(done.columns, 'column')})"
    written = counted(done.rollouts, "rollout")
    print(f"Wrote {written} of {options.input_fpath} to {options.output_fpath}{columns}.")
    return 0


COMMAND = Command(
    "export",
    ExportConfig,
    run,
    "ng_export results/calculator.jsonl results/calculator.parquet",
    reads_files=False,
    positional=("input_fpath", "output_fpath"),
)
