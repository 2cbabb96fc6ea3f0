"""Conversion of callers' data to plain data (dict, list, scalars), and of plain data to a DictConfig."""

import re
import sys
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

_INTERPOLATION = re.compile(r"(\\*)\$\{")


def plain_data(value: Any) -> Any:
    """Mappings as dicts, sequences as lists, paths as text; OmegaConf containers unresolved."""
    if "omegaconf" in sys.modules:
        from omegaconf import OmegaConf

        if OmegaConf.is_config(value):
            return OmegaConf.to_container(value, resolve=False)
    if isinstance(value, Mapping):
        return {key: plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def frozen_dictconfig(values: Mapping[str, Any]) -> "DictConfig":
    """Resolved data as a read-only DictConfig. A `${` in it is literal text, so it is escaped."""
    from omegaconf import OmegaConf

    config: DictConfig = OmegaConf.create(escaped(values))
    OmegaConf.set_readonly(config, True)
    return config


def escaped(value: Any) -> Any:
    """The data with every `${` as OmegaConf writes the literal text."""
    if isinstance(value, Mapping):
        return {key: escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    if isinstance(value, str) and "${" in value:
        return _INTERPOLATION.sub(lambda match: match[1] * 2 + r"\${", value)
    return value
