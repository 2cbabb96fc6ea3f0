"""`ng_materialize_prompts`."""

from nemo_gym.cli.command import Command
from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.prompt import materialize_prompts
from nemo_gym.terminal import counted


class MaterializePromptsConfig(BaseNeMoGymCLIConfig):
    input_jsonl_fpath: str
    """Rows without `responses_create_params.input`, one JSON object a line. Relative paths are looked for
    under NEMO_GYM_EXTRA_ROOTS, the working directory and the installed components."""
    output_jsonl_fpath: str
    """Where the rows go with their prompts filled in. Missing folders are created, an older file is
    replaced; must not be the input."""
    prompt_config: str
    """YAML file with `user` and, if wanted, `system`: the messages, with `{field}` for a field of the row and
    `{{` and `}}` for literal braces. Looked for as the input is."""


def run(config: GymConfig, options: MaterializePromptsConfig) -> int:
    count = materialize_prompts(options.input_jsonl_fpath, options.output_jsonl_fpath, options.prompt_config)
    print(f"Wrote {counted(count, 'row')} of {options.input_jsonl_fpath} to {options.output_jsonl_fpath}.")
    return 0


COMMAND = Command(
    "materialize_prompts",
    MaterializePromptsConfig,
    run,
    "ng_materialize_prompts +input_jsonl_fpath=questions.jsonl +prompt_config=prompt.yaml "
    "+output_jsonl_fpath=tasks.jsonl",
    reads_files=False,
)
