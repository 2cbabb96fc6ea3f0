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


def lazy(module: str) -> ModuleType:
    """Stands for a module; asks it for a name when that is first used, and keeps what it gave."""
    stand_in = ModuleType(module)  # no class of its own: names of plain modules are found quickest

    def found(name: str) -> Any:
        if name.startswith("__"):  # asked by whoever looks at modules, not by code that needs the package
            raise AttributeError(name)
        value = getattr(load_extra(module, "rl", "nemo_rl"), name)
        setattr(stand_in, name, value)
        return value

    vars(stand_in)["__getattr__"] = found
    return stand_in
