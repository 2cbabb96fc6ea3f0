"""Files of a new component, from templates."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path
from string import Template

from nemo_gym import PARENT_DIR
from nemo_gym.cli.output import say
from nemo_gym.errors import ConfigError
from nemo_gym.types import ServerKind

_TEMPLATES = PARENT_DIR / "nemo_gym" / "cli" / "templates"


@dataclass(frozen=True)
class Scaffold:
    """A kind of component and the folder of its templates."""

    kind: ServerKind
    templates: str
    next_step: str
    """What to do with the files, for the user."""

    def create(self, entrypoint: str) -> None:
        """Write the files of a new component and print their names."""
        folder = Path(entrypoint)
        name = folder.name
        is_name = re.fullmatch(r"[a-z][a-z0-9_]*", name) and not iskeyword(name)
        if folder.parent.name != self.kind or not is_name:
            raise ConfigError(
                f"+entrypoint={entrypoint}: must be {self.kind}/<name>, the name in lower case "
                "with underscores and not a Python keyword"
            )
        if folder.exists():
            raise ConfigError(f"{folder} already exists; nothing was written. Choose another name")
        try:
            for path in self._write(folder, name):
                say(path)
        except OSError as error:
            raise ConfigError(
                f"cannot write {error.filename}: {error.strerror}; choose another folder"
            ) from error
        say(f"Next: ng_test +entrypoint={folder}, then {self.next_step} in {folder / 'app.py'}.")

    def _write(self, folder: Path, name: str) -> Iterator[Path]:
        """Write the files, and yield each path. NAME and TESTS in the path of a template are placeholders."""
        words = {"name": name, "title": "".join(part.capitalize() for part in name.split("_"))}
        templates = _TEMPLATES / self.templates
        for template in sorted(templates.rglob("*.template")):
            relative = str(template.relative_to(templates)).removesuffix(".template")
            # A folder named `tests` would be excluded from the wheel.
            target = folder / relative.replace("NAME", name).replace("TESTS", "tests")
            target.parent.mkdir(parents=True, exist_ok=True)
            text = Template(template.read_text(encoding="utf-8")).substitute(words)
            target.write_text(text, encoding="utf-8")
            yield target
