"""`ng_init_resources_server`."""

from nemo_gym.cli.command import Command
from nemo_gym.cli.scaffold import Scaffold
from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig

_ENVIRONMENT = Scaffold("resources_servers", "resources_server", "write your tools and `verify`")


class InitConfig(BaseNeMoGymCLIConfig):
    entrypoint: str
    """The folder to create, relative to the working directory: `resources_servers/<name>`."""


def run(config: GymConfig, options: InitConfig) -> int:
    _ENVIRONMENT.create(options.entrypoint)
    return 0


COMMAND = Command(
    "init_resources_server",
    InitConfig,
    run,
    "ng_init_resources_server +entrypoint=resources_servers/my_env",
    reads_files=False,
)
