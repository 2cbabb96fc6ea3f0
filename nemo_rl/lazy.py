"""torch and transformers: installed with an extra, loaded when something of theirs is first used.

A module here writes

    if TYPE_CHECKING:
        import torch
    else:
        torch = lazy("torch")

and imports without either; annotations stay texts (`from __future__ import annotations`).
"""

from types import ModuleType
from typing import Any

from nemo_gym.extras import load_extra


class _Lazy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by whoever looks at modules, not by code that needs the package
            raise AttributeError(name)
        value = getattr(load_extra(self.__name__, "rl", "nemo_rl"), name)
        setattr(self, name, value)
        return value


def lazy(module: str) -> ModuleType:
    """Stands for a module until one of its names is used."""
    return _Lazy(module)
