"""Component folders as Python modules, without collisions.

Every component's modules live under one name, `<kind>.<implementation>.<module>`, whichever root the
folder stands under. Inside a component the siblings can also be imported by their bare names (`app`,
`utils`), as a script could: the import statement of that component's modules, and of no others, looks
beside it first. Both spellings give the same module.
"""

import builtins
import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from nemo_gym.config import ServerInstance, component_roots
from nemo_gym.errors import ComponentError
from nemo_gym.servers.base import SimpleServer
from nemo_gym.types import SERVER_KINDS


def find_component(instance: ServerInstance, roots: Sequence[Path]) -> Path:
    """The file that an instance's entrypoint names."""
    relative = Path(instance.kind, instance.implementation, instance.entrypoint)
    for root in roots:
        if (root / relative).is_file():
            return (root / relative).resolve()
    searched = ", ".join(str(root) for root in roots)
    raise ComponentError(
        f"{instance.name}: there is no {relative} under {searched}; "
        "check the implementation's name, or add its root to NEMO_GYM_EXTRA_ROOTS"
    )


def load_module(instance: ServerInstance) -> ModuleType:
    """The component's entry module, imported."""
    roots = component_roots()
    file = find_component(instance, roots)
    package = f"{instance.kind}.{instance.implementation}"
    name = ".".join([package, *Path(instance.entrypoint).with_suffix("").parts])
    _point_at(instance, file, roots)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ComponentError(_missing_package(instance, file, error)) from error
    except Exception as error:  # the boundary to an environment's own code
        raise ComponentError(
            f"{instance.name}: {where_in(file, error)} raised {type(error).__name__} while it was imported: "
            f"{error}; mend it, or leave {instance.name} out of config_paths"
        ) from error


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


class _ComponentFinder(MetaPathFinder):
    """Finds the modules of components under all roots and gives them the component's own import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        kind = fullname.partition(".")[0]
        if kind not in SERVER_KINDS:
            return None
        if fullname == kind:
            spec = ModuleSpec(kind, None, is_package=True)
            spec.submodule_search_locations = _folders_of(kind, component_roots())
            return spec
        spec_found = PathFinder.find_spec(fullname, path, target)
        if spec_found is not None and isinstance(spec_found.loader, SourceFileLoader):
            spec_found.loader = _ComponentLoader(fullname, spec_found.loader.path)
        return spec_found


class _ComponentLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import_of(module.__name__)}
        super().exec_module(module)


def _import_of(module_name: str) -> Any:
    """The import function of a component's modules: its siblings come first."""
    package = ".".join(module_name.split(".")[:2])

    def import_siblings_first(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or not _is_sibling(package, top):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = builtins.__import__(f"{package}.{name}", globals, locals, ("__name__",), 0)
        if fromlist:
            return builtins.__import__(f"{package}.{name}", globals, locals, fromlist, 0)
        return sys.modules[f"{package}.{top}"] if "." in name else module

    return import_siblings_first


def _is_sibling(package: str, name: str) -> bool:
    if name in sys.stdlib_module_names or name in SERVER_KINDS:
        return False
    folders = getattr(sys.modules.get(package), "__path__", ())
    return any(
        Path(folder, f"{name}.py").is_file() or Path(folder, name, "__init__.py").is_file()
        for folder in folders
    )


def _point_at(instance: ServerInstance, file: Path, roots: Sequence[Path]) -> None:
    """Make the component's name mean the folder that was found, also if it meant another before."""
    if not any(isinstance(finder, _ComponentFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ComponentFinder())
    kind = sys.modules.get(instance.kind)
    if kind is not None:
        kind.__path__ = _folders_of(instance.kind, roots)
    package = f"{instance.kind}.{instance.implementation}"
    folder = file.parents[len(Path(instance.entrypoint).parts) - 1]
    known = getattr(sys.modules.get(package), "__path__", None)
    if known is not None and str(folder) not in [str(Path(path).resolve()) for path in known]:
        for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
            del sys.modules[name]
    importlib.invalidate_caches()


def _folders_of(kind: str, roots: Sequence[Path]) -> list[str]:
    return [str(root / kind) for root in roots if (root / kind).is_dir()]


def _missing_package(instance: ServerInstance, file: Path, error: ModuleNotFoundError) -> str:
    requirements = file.parent / "requirements.txt"
    package = (error.name or str(error)).partition(".")[0]
    command = f"pip install -r {requirements}" if requirements.is_file() else f"pip install {package}"
    where = where_in(file, error)
    return f"{instance.name}: {where} needs the package {package!r}, which is not installed; {command}"


def where_in(file: Path, error: BaseException) -> str:
    """The last line of the component's own code that the error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(file.parent)]
    if own:
        return f"{own[-1].filename}:{own[-1].lineno}"
    line = getattr(error, "lineno", None)
    return f"{file}:{line}" if line else str(file)
