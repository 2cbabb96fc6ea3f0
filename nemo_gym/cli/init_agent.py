"""`ng_init_agent`."""

from nemo_gym.cli.command import Command
from nemo_gym.cli.scaffold import Scaffold
from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig

_AGENT = Scaffold("responses_api_agents", "agent", "change how the agent converses")


class InitAgentConfig(BaseNeMoGymCLIConfig):
    entrypoint: str
    """The folder to create, relative to the working directory: `responses_api_agents/<name>`."""


def run(config: GymConfig, options: InitAgentConfig) -> int:
    _AGENT.create(options.entrypoint)
    return 0


COMMAND = Command(
    "init_agent",
    InitAgentConfig,
    run,
    "ng_init_agent +entrypoint=responses_api_agents/my_agent",
    reads_files=False,
)
