"""`ng_test`."""

import subprocess
import sys
from importlib.util import find_spec

from nemo_gym.cli.command import Command
from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.errors import ConfigError


class ComponentTestConfig(BaseNeMoGymCLIConfig):
    entrypoint: str
    """Folder of the component: `<kind>/<implementation>`, relative to one of the component roots."""


def run(config: GymConfig, options: ComponentTestConfig) -> int:
    if find_spec("pytest") is None:
        raise ConfigError(
            f"ng_test needs pytest, which is not installed; run: {sys.executable} -m pip install pytest"
        )
    for root in config.roots:
        if (root / options.entrypoint).is_dir():
            # In the component's root, so that its tests import this `resources_servers.<name>`.
            imports = ["-p", "nemo_gym.launch.pytest_plugin", "--import-mode=importlib"]
            command = [sys.executable, "-m", "pytest", *imports, options.entrypoint]
            return subprocess.run(command, cwd=root, check=False).returncode
    searched = ", ".join(map(str, config.roots))
    raise ConfigError(f"no component folder {options.entrypoint!r} in {searched}; check +entrypoint")


COMMAND = Command(
    "test", ComponentTestConfig, run, "ng_test +entrypoint=resources_servers/calculator", reads_files=False
)
