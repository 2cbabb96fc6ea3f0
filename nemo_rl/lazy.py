"""Lazy imports of torch and transformers, which are installed with an extra.

A module writes

    if TYPE_CHECKING:
        import torch
    else:
        torch = lazy("torch")

and can be imported without the package. Its annotations stay strings (`from __future__ import annotations`).
"""

from types import ModuleType
from typing import Any

from nemo_gym.extras import load_extra


def lazy(module: str) -> ModuleType:
    """A stand-in for a module, which is imported when one of its names is first used."""
    stand_in = ModuleType(module)  # not a subclass: attributes of plain modules are found fastest

    def resolve(name: str) -> Any:
        if name.startswith("__"):  # introspection, not code that needs the package
            raise AttributeError(name)
        value = getattr(load_extra(module, "rl", "nemo_rl"), name)
        setattr(stand_in, name, value)
        return value

    vars(stand_in)["__getattr__"] = resolve
    return stand_in
