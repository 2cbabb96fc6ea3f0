"""Which modules of this repository import which, read from the source without importing anything."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path


class ImportGraph:
    """The Python files below `root`, by their paths relative to it."""

    def __init__(self, root: Path, files: Iterable[Path]) -> None:
        self._modules = {_module_name(file): file for file in files}
        self._importers: defaultdict[Path, set[Path]] = defaultdict(set)
        for file in self._modules.values():
            for imported in self._imports(root / file, file):
                self._importers[imported].add(file)

    def distances(self, changed: Iterable[Path], limit: int) -> dict[Path, int]:
        """Every file that reaches a changed one, with the number of imports between them, up to `limit`."""
        found = dict.fromkeys(changed, 0)
        nearest = list(found)
        for distance in range(1, limit + 1):
            importers = {importer for file in nearest for importer in self._importers[file]}
            nearest = sorted(importers - found.keys())
            found |= dict.fromkeys(nearest, distance)
        return found

    def _imports(self, path: Path, file: Path) -> Iterator[Path]:
        package = file.parent.parts
        for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
            for name in _imported_names(node, package):
                if name in self._modules:
                    yield self._modules[name]


def _module_name(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported_names(node: ast.AST, package: tuple[str, ...]) -> list[str]:
    """The modules that a statement may import; `from a import b` may mean `a` or `a.b`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    parents = package[: len(package) - node.level + 1] if node.level else ()
    module = ".".join((*parents, *([node.module] if node.module else [])))
    return [module, *(f"{module}.{alias.name}" for alias in node.names)]
