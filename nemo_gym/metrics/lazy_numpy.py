"""`np`: numpy, imported when one of its names is first used. Rollouts are played without it."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("numpy"), name)
            setattr(self, name, value)
            return value

    np = _Numpy("numpy")
