"""`ng_dump_config`."""

from nemo_gym.cli.command import Command, ConfigPaths
from nemo_gym.cli.output import say_yaml
from nemo_gym.config import GymConfig


def run(config: GymConfig, options: ConfigPaths) -> int:
    text = config.to_yaml()
    say_yaml(text, config.to_yaml(ascii_only=True))
    return 0


COMMAND = Command(
    "dump_config",
    ConfigPaths,
    run,
    "ng_dump_config '+config_paths=[resources_servers/calculator/configs/calculator.yaml,"
    "responses_api_models/openai_model/configs/openai_model.yaml]' "
    "+policy_base_url=http://127.0.0.1:8000/v1 +policy_api_key=none +policy_model_name=my-model",
)
