"""Checks of a server without starting it: its component, its settings, its data files."""

from collections.abc import Iterator

from nemo_gym.config import GymConfig, ServerInstance, find_file
from nemo_gym.errors import ConfigError
from nemo_gym.launch.components import find_component, load_module, server_class
from nemo_gym.servers.server_base import configure


def check_settings(config: GymConfig, instance: ServerInstance) -> None:
    """Raise a ConfigError if a server's component is missing or rejects its settings."""
    cls = server_class(instance, load_module(instance, config.roots))
    file = find_component(instance, config.roots)
    cls.check_config(configure(cls.config_class(), config, instance, file))


def check_server(config: GymConfig, instance: ServerInstance) -> Iterator[str]:
    """One message for each problem of a server."""
    try:
        check_settings(config, instance)
    except ConfigError as error:
        yield str(error)
    for dataset in instance.settings.get("datasets") or []:
        path = dataset["jsonl_fpath"]
        # Only examples ship with the component; data preparation creates the other splits.
        if dataset["type"] == "example" and find_file(path, config.roots) is None:
            yield f"{instance.name}: dataset file {path} not found; check its jsonl_fpath"
