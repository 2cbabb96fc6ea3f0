"""The configuration of this process, for code that asks for it instead of being given it."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nemo_gym.config.parser import GlobalConfigDictParser, GlobalConfigDictParserConfig
from nemo_gym.config.plain_data import frozen_dictconfig, plain_data
from nemo_gym.types import HF_TOKEN_KEY_NAME

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass
class _Holder:
    values: "DictConfig | None" = None


_holders = [_Holder()]
"""The last is the current one; above the first stand those of the servers that are open, in their order."""


def set_global_config_dict(values: "DictConfig | Mapping[str, Any] | None") -> None:
    """Makes this the configuration of the process; None forgets it."""
    from omegaconf import DictConfig

    if values is None or isinstance(values, DictConfig):
        _holders[-1].values = values
    else:
        _holders[-1].values = frozen_dictconfig(plain_data(values))


@contextmanager
def global_config_dict(values: "DictConfig") -> "Iterator[None]":
    """Makes this the configuration of the process meanwhile; several may be left in any order."""
    holder = _Holder(values)
    _holders.append(holder)
    try:
        yield
    finally:
        _holders[:] = [other for other in _holders if other is not holder]


def maybe_get_global_config_dict() -> "DictConfig | None":
    return _holders[-1].values


def get_global_config_dict(
    global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None,
    global_config_dict_parser_cls: type[GlobalConfigDictParser] = GlobalConfigDictParser,
) -> "DictConfig":
    """The configuration of the process; if there is none yet, that of its command line, from then on."""
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
    """The W&B run that is active in this process; None where W&B is not even loaded."""
    return getattr(sys.modules.get("wandb"), "run", None)
