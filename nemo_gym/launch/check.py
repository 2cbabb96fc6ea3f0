"""Checks of a server that need nothing started: its component, its settings, its data files."""

from collections.abc import Iterator

from nemo_gym.config import GymConfig, ServerInstance, component_roots, find_file
from nemo_gym.errors import ConfigError
from nemo_gym.launch.components import load_module, server_class
from nemo_gym.servers.server_base import configure


def check_settings(config: GymConfig, instance: ServerInstance) -> None:
    """Raises a ConfigError where a server has no component, or one that does not take its settings."""
    cls = server_class(instance, load_module(instance))
    cls.check_config(configure(cls.config_class(), config, instance))


def check_server(config: GymConfig, instance: ServerInstance) -> Iterator[str]:
    """Everything that is wrong with one server, a message each."""
    try:
        check_settings(config, instance)
    except ConfigError as error:
        yield str(error)
    for dataset in instance.settings.get("datasets") or []:
        path = dataset["jsonl_fpath"]
        # Other splits are made by data preparation; examples ship with the component.
        if dataset["type"] == "example" and find_file(path, component_roots()) is None:
            yield f"{instance.name}: the dataset file {path} is not there; check its jsonl_fpath"
