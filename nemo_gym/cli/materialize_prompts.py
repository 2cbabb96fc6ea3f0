"""`ng_materialize_prompts`."""

from nemo_gym.cli.command import Command
from nemo_gym.cli.output import say
from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.prompt import materialize_prompts
from nemo_gym.terminal import counted


class MaterializePromptsConfig(BaseNeMoGymCLIConfig):
    input_jsonl_fpath: str
    """Rows without `responses_create_params.input`, one JSON object per line. Relative paths are searched for
    in NEMO_GYM_EXTRA_ROOTS, the working directory and the folder of installed components."""
    output_jsonl_fpath: str
    """The file to write: the rows with their prompts. Missing folders are created, an existing file is
    replaced. Must not be the input."""
    prompt_config: str
    """YAML file with the message templates `user` and, optionally, `system`. `{field}` is replaced by a field
    of the row; `{{` and `}}` are literal braces. Searched for like the input."""


def run(config: GymConfig, options: MaterializePromptsConfig) -> int:
    count = materialize_prompts(
        options.input_jsonl_fpath, options.output_jsonl_fpath, options.prompt_config, config.roots
    )
    say(f"Wrote {counted(count, 'row')} from {options.input_jsonl_fpath} to {options.output_jsonl_fpath}.")
    return 0


COMMAND = Command(
    "materialize_prompts",
    MaterializePromptsConfig,
    run,
    "ng_materialize_prompts +input_jsonl_fpath=questions.jsonl +prompt_config=prompt.yaml "
    "+output_jsonl_fpath=tasks.jsonl",
    reads_files=False,
)
