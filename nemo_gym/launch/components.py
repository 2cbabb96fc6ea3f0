"""Components: the file of an instance, its module, its server class, and errors if one is missing."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from nemo_gym.config import ServerInstance
from nemo_gym.errors import ComponentError
from nemo_gym.launch.imports import point_at
from nemo_gym.servers.missing_files import missing_file_note
from nemo_gym.servers.server_base import SimpleServer, component_folder


def find_component(instance: ServerInstance, roots: Sequence[Path]) -> Path:
    """The file of an instance's entrypoint."""
    relative = Path(instance.kind, instance.implementation, instance.entrypoint)
    for root in roots:
        if (root / relative).is_file():
            return (root / relative).resolve()
    searched = ", ".join(str(root) for root in roots)
    raise ComponentError(
        f"{instance.name}: {relative} not found in {searched}; "
        "check the name of the implementation, or add its root to NEMO_GYM_EXTRA_ROOTS"
    )


def load_module(instance: ServerInstance, roots: Sequence[Path]) -> ModuleType:
    """Import the component's entry module."""
    file = find_component(instance, roots)
    package = f"{instance.kind}.{instance.implementation}"
    try:
        point_at(package, component_folder(instance, file), roots)
        return importlib.import_module(".".join([package, *Path(instance.entrypoint).with_suffix("").parts]))
    except (Exception, SystemExit) as error:  # the boundary to an environment's own code
        raise component_error(instance, file, error, "imported") from error


def server_class(instance: ServerInstance, module: ModuleType) -> type[SimpleServer]:
    """The one server class that the module defines."""
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, SimpleServer)
    ]
    own = list(dict.fromkeys(value for value in found if value.__module__ == module.__name__))
    last = [cls for cls in own if not any(other is not cls and issubclass(other, cls) for other in own)]
    if len(last) != 1:
        names = ", ".join(cls.__name__ for cls in last) or "none"
        raise ComponentError(
            f"{instance.name}: {module.__file__} must define exactly one server class, found: {names}; "
            f"derive one from the base class of {instance.kind}"
        )
    return last[0]


def component_error(instance: ServerInstance, file: Path, error: BaseException, stage: str) -> ComponentError:
    """The error for code of a component that failed while it was `stage`: `imported`, `set up`, `started`."""
    folder = component_folder(instance, file)
    where = _where(file, folder, error)
    package = _missing_package(error)
    if package is not None:
        requirements = folder / "requirements.txt"
        wanted = f"-r {requirements}" if requirements.is_file() else package
        return ComponentError(
            f"{instance.name}: {where} needs the package {package!r}, which is not installed; "
            f"run: pip install {wanted}"
        )
    note = missing_file_note(error, folder)
    return ComponentError(
        f"{instance.name}: {where} raised {type(error).__name__} while it was {stage}: {note or error}; "
        f"fix the error, or remove the server {instance.name} from the configuration"
    )


def _missing_package(error: BaseException) -> str | None:
    """The package that is not installed; None if only a module of an installed package is missing."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    package = error.name.partition(".")[0]
    is_there = package in sys.modules or importlib.util.find_spec(package) is not None
    return None if is_there else package


def _where(file: Path, folder: Path, error: BaseException) -> str:
    """The last line of the component's own code in the traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(folder)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else str(file)
