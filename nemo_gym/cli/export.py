"""`ng_export`."""

from nemo_gym.analysis.rollout_export import export_rollouts
from nemo_gym.cli.command import Command
from nemo_gym.cli.output import complain, say
from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.records import BadLines
from nemo_gym.terminal import counted


class ExportConfig(BaseNeMoGymCLIConfig):
    input_fpath: str
    """A rollouts file (`.jsonl`), or a Parquet file (`.parquet`) exported from one."""
    output_fpath: str
    """The file to write; its extension selects the format. To `.parquet`: one row per rollout, with a column
    `transcript`. From `.jsonl` to `.jsonl`: with `output` in the older chat format. From `.parquet` to
    `.jsonl`: the original lines. Missing folders are created, an existing file is replaced. Must not be the
    input."""
    skip_bad_lines: bool = False
    """Skip lines that are not rollouts and rollouts whose key occurs in an earlier line, and list them.
    Without it, the first such line is an error."""
    include_json: bool = True
    """Add the column `rollout_json` with the whole line to a Parquet file. Without it, the file cannot be
    converted back."""


def run(config: GymConfig, options: ExportConfig) -> int:
    bad_lines = BadLines(options.skip_bad_lines)
    done = export_rollouts(
        options.input_fpath, options.output_fpath, bad_lines, include_json=options.include_json
    )
    for line in bad_lines.warning_lines():
        complain(line)
    columns = "" if done.columns is None else f" ({counted(done.columns, 'column')})"
    written = counted(done.rollouts, "rollout")
    say(f"Wrote {written} from {options.input_fpath} to {options.output_fpath}{columns}.")
    return 0


COMMAND = Command(
    "export",
    ExportConfig,
    run,
    "ng_export results/calculator.jsonl results/calculator.parquet",
    reads_files=False,
    positional=("input_fpath", "output_fpath"),
)
