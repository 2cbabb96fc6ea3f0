"""`ng_version`."""

import platform
from importlib.metadata import version

from nemo_gym import PARENT_DIR, __version__
from nemo_gym.cli.command import Command
from nemo_gym.cli.output import say, say_json
from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.extras import DISTRIBUTION

_PACKAGES = ("fastapi", "pydantic", "aiohttp", "uvicorn", "omegaconf", "orjson")


class VersionConfig(BaseNeMoGymCLIConfig):
    json_output: bool = False
    """Print one JSON object instead of text."""


def run(config: GymConfig, options: VersionConfig) -> int:
    versions = {DISTRIBUTION: __version__, "python": platform.python_version()}
    versions |= {name: version(name) for name in _PACKAGES}
    if options.json_output:
        say_json(versions)
        return 0
    say(f"{DISTRIBUTION} {__version__} ({PARENT_DIR})")
    say(", ".join(f"{name} {number}" for name, number in list(versions.items())[1:]))
    return 0


COMMAND = Command("version", VersionConfig, run, "ng_version", reads_files=False)
