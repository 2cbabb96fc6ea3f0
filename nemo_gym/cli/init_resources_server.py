"""`ng_init_resources_server`."""

import re
from collections.abc import Iterator
from keyword import iskeyword
from pathlib import Path
from string import Template

from nemo_gym import PARENT_DIR
from nemo_gym.cli.command import Command
from nemo_gym.cli.output import say
from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.errors import ConfigError

TEMPLATES = PARENT_DIR / "nemo_gym" / "cli" / "templates" / "resources_server"


class InitConfig(BaseNeMoGymCLIConfig):
    entrypoint: str
    """The folder to create, relative to the working directory: `resources_servers/<name>`."""


def run(config: GymConfig, options: InitConfig) -> int:
    folder = Path(options.entrypoint)
    name = folder.name
    is_name = re.fullmatch(r"[a-z][a-z0-9_]*", name) and not iskeyword(name)
    if folder.parent.name != "resources_servers" or not is_name:
        raise ConfigError(
            f"+entrypoint={options.entrypoint}: must be resources_servers/<name>, the name in lower case "
            "with underscores and not a Python keyword"
        )
    if folder.exists():
        raise ConfigError(f"{folder} already exists; nothing was written. Choose another name")
    try:
        for path in _write(folder, name):
            say(path)
    except OSError as error:
        raise ConfigError(
            f"cannot write {error.filename}: {error.strerror}; choose another folder"
        ) from error
    say(f"Next: ng_test +entrypoint={folder}, then write your tools and `verify` in {folder / 'app.py'}.")
    return 0


def _write(folder: Path, name: str) -> Iterator[Path]:
    """Write the files, and yield each path. NAME and TESTS in the path of a template are placeholders."""
    words = {"name": name, "title": "".join(part.capitalize() for part in name.split("_"))}
    for template in sorted(TEMPLATES.rglob("*.template")):
        relative = str(template.relative_to(TEMPLATES)).removesuffix(".template")
        # A folder named `tests` would be excluded from the wheel.
        target = folder / relative.replace("NAME", name).replace("TESTS", "tests")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Template(template.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
        yield target


COMMAND = Command(
    "init_resources_server",
    InitConfig,
    run,
    "ng_init_resources_server +entrypoint=resources_servers/my_env",
    reads_files=False,
)
