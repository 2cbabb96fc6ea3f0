"""Component roots: the folders in which relative paths of a configuration are searched for."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from nemo_gym.environment_variables import extra_roots
from nemo_gym.setting_names import close_matches

INSTALL_ROOT = Path(__file__).resolve().parents[2]


def component_roots(working_dir: Path | None = None) -> tuple[Path, ...]:
    """The folders in NEMO_GYM_EXTRA_ROOTS, the working directory and the install root, if they exist.

    Called where a command or a published function begins; what they call gets the result.
    """
    candidates = (*extra_roots(), working_dir or Path.cwd(), INSTALL_ROOT)
    return tuple(dict.fromkeys(path.resolve() for path in candidates if path.is_dir()))


def find_file(path: str | Path, roots: Sequence[Path]) -> Path | None:
    """The file itself if the path is absolute (`~` is expanded), else the first match in the roots."""
    wanted = expand(path)
    return next((found for root in roots if (found := root / wanted).is_file()), None)


def find_close_files(path: str | Path, roots: Sequence[Path]) -> list[Path]:
    """Existing YAML files with a similar path."""
    wanted = expand(path)
    if wanted.is_absolute():
        found: Iterable[Path] = _close_files(Path(wanted.anchor), wanted.parts[1:])
    else:
        found = (file for root in roots for file in _close_files(root, wanted.parts))
    return list(dict.fromkeys(found))[:3]


def expand(path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # `~name` without such a user is an ordinary file name
        return Path(path)


def _close_files(folder: Path, parts: tuple[str, ...]) -> list[Path]:
    """Search only folders with similar names, so that a large tree is never walked."""
    if not parts:
        return []
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    close = [parts[0]] if parts[0] in names and len(parts) > 1 else close_matches(parts[0], names)
    if len(parts) == 1:
        return [folder / name for name in close if name.endswith((".yaml", ".yml"))]
    return [file for name in close for file in _close_files(folder / name, parts[1:])]
