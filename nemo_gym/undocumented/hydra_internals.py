"""Hydra: its parser of override values.

`hydra.core.override_parser` is undocumented. If the probe fails, values are parsed by the documented compose
API, which builds a whole configuration for each one.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

from nemo_gym.undocumented.probe import Probe

if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser

_KEY = "key"


def override_value(text: str) -> Any:
    """The value of `key=text`. Raises ValueError if the grammar rejects the text or sweeps over it."""
    from hydra.errors import HydraException

    try:
        return _parsed(text) if probe.passed else _composed(text)
    except (HydraException, RecursionError) as error:
        raise ValueError(f"not an override value: {text!r}") from error


@cache
def _parser() -> "OverridesParser":
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def _parsed(text: str) -> Any:
    override = _parser().parse_override(f"{_KEY}={text}")
    if override.is_sweep_override():
        raise ValueError(f"{text!r} is a sweep")
    return override.value()


def _composed(text: str) -> Any:
    from hydra import compose, initialize
    from omegaconf import OmegaConf

    with initialize(version_base=None, config_path=None):
        config: Any = OmegaConf.to_container(compose(overrides=[f"+{_KEY}={text}"]))
    return config[_KEY]


def _check() -> bool:
    return _parsed("{a: [1, 'b, c', x]}") == {"a": [1, "b, c", "x"]} and _is_rejected("a,b")


def _is_rejected(text: str) -> bool:
    try:
        _parsed(text)
    except ValueError:
        return True
    return False


probe = Probe("hydra", _check, "hydra-core")
