"""`ng_dump_config`."""

from nemo_gym.cli.command import Command, ConfigPaths
from nemo_gym.config import GymConfig


def run(config: GymConfig, options: ConfigPaths) -> int:
    print(config.to_yaml(masked=True), end="")
    return 0


COMMAND = Command(
    "dump_config",
    ConfigPaths,
    run,
    "ng_dump_config '+config_paths=[resources_servers/calculator/configs/calculator.yaml]'",
)
