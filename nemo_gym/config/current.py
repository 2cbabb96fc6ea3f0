"""The configuration of this process, for code that asks for it instead of being given it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nemo_gym.config.parser import GlobalConfigDictParser, GlobalConfigDictParserConfig
from nemo_gym.config.plain import frozen_dictconfig, plain_data
from nemo_gym.types import HF_TOKEN_KEY_NAME

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass
class _Holder:
    values: "DictConfig | None" = None


_current = _Holder()


def set_global_config_dict(values: "DictConfig | Mapping[str, Any] | None") -> None:
    """Makes this the configuration of the process; None forgets it."""
    from omegaconf import DictConfig

    if values is None or isinstance(values, DictConfig):
        _current.values = values
    else:
        _current.values = frozen_dictconfig(plain_data(values))


def maybe_get_global_config_dict() -> "DictConfig | None":
    return _current.values


def get_global_config_dict(
    global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None,
    global_config_dict_parser_cls: type[GlobalConfigDictParser] = GlobalConfigDictParser,
) -> "DictConfig":
    """The configuration of the process; if there is none yet, that of its command line, from then on."""
    if _current.values is None:
        _current.values = global_config_dict_parser_cls().parse(global_config_dict_parser_config)
    return _current.values


def get_hf_token() -> str | None:
    """The configuration's `hf_token`."""
    values = maybe_get_global_config_dict()
    token = None if values is None else values.get(HF_TOKEN_KEY_NAME)
    return None if token is None else str(token)


def get_wandb_run() -> None:
    """The active W&B run; there is none."""
    return None
