"""Files that a component's settings name: relative to the working directory or to the component's folder."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nemo_gym.config.plain_data import plain_data

_ELSEWHERE = {"datasets", "entrypoint"}
"""Settings whose files are searched for in the component roots."""
_NAMES_A_FILE = re.compile(r"path|file|dir|folder|template", re.IGNORECASE)
_LONGEST_PATH = 1024


@dataclass
class ComponentFiles:
    """Where the relative paths in the settings of one component are searched for."""

    folder: Path
    """The component's folder."""
    working_dir: Path
    """The folder in which the user started the command."""
    changed: set[str] = field(default_factory=set)
    """The dotted keys of the settings that were made absolute."""

    def located(
        self, settings: Mapping[str, Any], config_class: type[BaseModel], prefix: str
    ) -> dict[str, Any]:
        """The settings, with the paths that exist in one of the two folders made absolute.

        A path that exists in the working directory stays as it is while that is the directory of the process.
        """
        defaults = {
            name: info.default
            for name, info in config_class.model_fields.items()
            if name not in settings and isinstance(info.default, str | Path)
        }
        found = {name: self._value(name, value, prefix) for name, value in plain_data(settings).items()}
        by_default = {name: self._value(name, value, prefix) for name, value in defaults.items()}
        return found | {name: value for name, value in by_default.items() if value != defaults[name]}

    def _value(self, name: str, value: Any, prefix: str) -> Any:
        key = f"{prefix}.{name}"
        if isinstance(value, dict):
            return {below: self._value(str(below), item, key) for below, item in value.items()}
        if isinstance(value, list):
            return [self._value(name, item, prefix) for item in value]
        if not isinstance(value, str | Path) or name in _ELSEWHERE or not _may_be_path(name, str(value)):
            return value
        file = self._file(Path(value))
        if file is None:
            return value
        self.changed.add(key)
        return type(value)(file)

    def _file(self, path: Path) -> Path | None:
        """The absolute path; None if it does not exist or need not be changed."""
        try:
            if (self.working_dir / path).exists():
                return self.working_dir / path if Path.cwd() != self.working_dir else None
            return self.folder / path if (self.folder / path).exists() else None
        except OSError:  # not a possible path, such as a prompt text
            return None


def _may_be_path(name: str, text: str) -> bool:
    if not 0 < len(text) < _LONGEST_PATH or text[0] in "/~" or "://" in text or not text.isprintable():
        return False
    return "/" in text or "." in text.strip(".") or bool(_NAMES_A_FILE.search(name))
