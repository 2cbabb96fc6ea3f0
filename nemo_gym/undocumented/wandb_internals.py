"""W&B: internal settings, its terminal output and its error reports.

Undocumented: settings that begin with `x_`, `wandb.termsetup`, the telemetry module. They keep W&B quiet,
keep the machine's details out of the run and shorten retries. If the probe fails, none of them is used: the
same metrics and rollouts are sent, but W&B may print lines about the login, and it takes longer to notice a
server that is down.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from nemo_gym.undocumented.probe import Probe

_INTERNAL_SETTINGS: dict[str, Any] = {
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    # A server that is down is noticed after three calls within seconds, not after minutes.
    "x_graphql_retry_max": 2,
    "x_graphql_retry_wait_min_seconds": 1.0,
    "x_graphql_timeout_seconds": 15.0,
}
_TELEMETRY = "wandb.analytics.opentelemetry.opentelemetry_proxy"


def internal_settings() -> dict[str, Any]:
    """The internal settings to use in addition to the documented ones."""
    return dict(_INTERNAL_SETTINGS) if probe.passed else {}


@contextmanager
def quiet_terminal(wandb: Any) -> Iterator[None]:
    """No lines about the login on stderr, and no prompt for a key."""
    if not probe.passed:
        yield
        return
    settings = wandb.setup().settings
    wandb.termsetup(wandb.Settings(silent=True), None)
    try:
        yield
    finally:
        wandb.termsetup(settings, None)


def disable_error_reports() -> None:
    """Error reports go to W&B's server and would delay the end of the process if it does not respond."""
    if probe.passed:
        import_module(_TELEMETRY).disable()


def _check() -> bool:
    wandb = import_module("wandb")
    known = wandb.Settings(**_INTERNAL_SETTINGS)
    return (
        all(getattr(known, name) == value for name, value in _INTERNAL_SETTINGS.items())
        and callable(wandb.termsetup)
        and callable(import_module(_TELEMETRY).disable)
    )


probe = Probe("wandb", _check)
