"""Component folders as Python packages, without collisions.

The modules of a component are named `<kind>.<implementation>.<module>` and all come from the same folder,
never partly from a component of the same name in another root. Inside a component, its modules can also be
imported by their bare names (`app`, `utils`), as in a script: import statements in these modules, and only
there, search the component's folder first. Both names refer to the same module.
"""

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from nemo_gym.types import SERVER_KINDS


def use_component_imports(roots: Sequence[Path]) -> "_ComponentFinder":
    """Make the components in these roots importable by their names."""
    for finder in sys.meta_path:
        if isinstance(finder, _ComponentFinder):
            finder.roots = roots
            return finder
    finder = _ComponentFinder(roots)
    # Before the finder of ordinary modules, but after finders that others put first, such as pytest's.
    sys.meta_path.insert(sys.meta_path.index(PathFinder), finder)
    return finder


def point_at(package: str, folder: Path, roots: Sequence[Path]) -> None:
    """Make `<kind>.<implementation>` refer to this folder, even if it referred to another before."""
    finder = use_component_imports(roots)
    importlib.invalidate_caches()
    kind = importlib.import_module(package.partition(".")[0])
    kind.__path__ = finder.folders_of(kind.__name__)
    if not _comes_from(package, folder):
        for name in _modules_of(package):
            del sys.modules[name]
        finder.folders[package] = folder
        try:
            importlib.import_module(package)
        finally:
            del finder.folders[package]


class _ComponentFinder(MetaPathFinder):
    """Finds modules of components in all roots and gives them the import function of their component."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = roots
        self.folders: dict[str, Path] = {}
        """The folders of packages while `point_at` imports them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        kind, *inside = fullname.split(".")
        if kind not in SERVER_KINDS:
            return None
        if not inside:
            return _folder_spec(kind, self.folders_of(kind))
        if len(inside) == 1:
            folder = self.folders.get(fullname) or self._first_folder(kind, inside[0])
            return _package_spec(fullname, folder) if folder is not None else None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _ComponentLoader(fullname, spec.loader.path)
        return spec

    def folders_of(self, kind: str) -> list[str]:
        return [str(root / kind) for root in self.roots if (root / kind).is_dir()]

    def _first_folder(self, kind: str, implementation: str) -> Path | None:
        """The folder that an ordinary import of a component uses."""
        folders = [Path(folder, implementation) for folder in self.folders_of(kind)]
        with_app = [folder for folder in folders if (folder / "app.py").is_file()]
        return next((folder for folder in (*with_app, *folders) if folder.is_dir()), None)


class _ComponentLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import_of(module.__name__)}
        super().exec_module(module)


def _import_of(module_name: str) -> Any:
    """The import function of a component's modules: it searches the component's folder first."""
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
    for folder in getattr(sys.modules.get(package), "__path__", ()):
        if Path(folder, f"{name}.py").is_file() or Path(folder, name, "__init__.py").is_file():
            return True
        if Path(folder, name).is_dir():  # a namespace package gives way to any other module
            return importlib.util.find_spec(name) is None
    return False


def _comes_from(package: str, folder: Path) -> bool:
    """Whether the package is imported, and only from this folder."""
    known = sys.modules.get(package)
    if known is None or [Path(path).resolve() for path in known.__path__] != [folder]:
        return False
    files = (getattr(sys.modules[name], "__file__", None) for name in _modules_of(package))
    return all(Path(file).resolve().is_relative_to(folder) for file in files if file)


def _modules_of(package: str) -> list[str]:
    return [name for name in sys.modules if name == package or name.startswith(f"{package}.")]


def _package_spec(package: str, folder: Path) -> ModuleSpec:
    init = folder / "__init__.py"
    if not init.is_file():
        return _folder_spec(package, [str(folder)])
    loader = _ComponentLoader(package, str(init))
    spec = importlib.util.spec_from_file_location(
        package, init, loader=loader, submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    return spec


def _folder_spec(name: str, folders: list[str]) -> ModuleSpec:
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = folders
    return spec
