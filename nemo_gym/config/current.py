"""The configuration of this process, for code that does not get one as an argument."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.config.load import ENV_FILE
from nemo_gym.config.parser import GlobalConfigDictParser, GlobalConfigDictParserConfig
from nemo_gym.config.plain_data import frozen_dictconfig, plain_data
from nemo_gym.config.resolve import resolve_part
from nemo_gym.config.yaml_file import load_yaml_file
from nemo_gym.types import HF_TOKEN_KEY_NAME

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass
class _Holder:
    values: "DictConfig | None" = None


_holders = [_Holder()]
"""The last one is current. The first belongs to the process, the others to open servers, in order."""


def set_global_config_dict(values: "DictConfig | Mapping[str, Any] | None") -> None:
    """Set the configuration of the process; None clears it."""
    from omegaconf import DictConfig

    if values is None or isinstance(values, DictConfig):
        _holders[-1].values = values
    else:
        _holders[-1].values = frozen_dictconfig(plain_data(values))


@contextmanager
def global_config_dict(values: "DictConfig") -> "Iterator[None]":
    """Set the configuration of the process inside a block. Nested blocks may end in any order."""
    holder = _Holder(values)
    _holders.append(holder)
    try:
        yield
    finally:
        _holders[:] = [other for other in _holders if other is not holder]


def maybe_get_global_config_dict() -> "DictConfig | None":
    return _holders[-1].values


def process_setting(key: str) -> Any:
    """A setting of the configuration of the process, or of env.yaml if there is no configuration."""
    values = maybe_get_global_config_dict()
    if values is not None:
        return values.get(key)
    file = Path.cwd() / ENV_FILE
    env = load_yaml_file(file) if file.is_file() else {}
    return resolve_part(key, env.get(key), env)


def get_global_config_dict(
    global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None,
    global_config_dict_parser_cls: type[GlobalConfigDictParser] = GlobalConfigDictParser,
) -> "DictConfig":
    """The configuration of the process. If there is none yet, it is read from the command line and kept."""
    holder = _holders[-1]
    if holder.values is None:
        holder.values = global_config_dict_parser_cls().parse(global_config_dict_parser_config)
    return holder.values


def get_hf_token() -> str | None:
    """The configuration's `hf_token`."""
    values = maybe_get_global_config_dict()
    token = None if values is None else values.get(HF_TOKEN_KEY_NAME)
    return None if token is None else str(token)


def get_wandb_run() -> Any | None:
    """The active W&B run of this process; None if W&B is not loaded."""
    return getattr(sys.modules.get("wandb"), "run", None)
