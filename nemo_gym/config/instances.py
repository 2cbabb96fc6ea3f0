"""Server instances: the settings of each server in a resolved configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.types import SERVER_KINDS, ServerKind


@dataclass(frozen=True)
class ServerInstance:
    """One server of the configuration, named by its top-level key."""

    name: str
    kind: ServerKind
    implementation: str
    """The folder of the component: `<kind>/<implementation>/`."""
    entrypoint: str
    """The module in that folder, `app.py`."""
    settings: dict[str, Any] = field(repr=False)
    """The implementation's block, as plain resolved data. Must not be changed."""
    host: str
    port: int | None
    """None until `assign_ports` has picked one."""
    num_workers: int

    @property
    def path(self) -> str:
        """The dotted key of its block in the configuration."""
        return f"{self.name}.{self.kind}.{self.implementation}"


@dataclass(frozen=True)
class InstancePath:
    """The place of an instance's block: `<name>.<kind>.<implementation>`."""

    name: str
    kind: ServerKind
    implementation: str

    def __str__(self) -> str:
        return f"{self.name}.{self.kind}.{self.implementation}"


def instance_at(values: Mapping[str, Any], path: InstancePath, default_host: str) -> ServerInstance:
    """The instance whose (valid) block is at this path."""
    settings = values[path.name][path.kind][path.implementation]
    port = settings.get("port")
    return ServerInstance(
        name=path.name,
        kind=path.kind,
        implementation=path.implementation,
        entrypoint=settings["entrypoint"],
        settings=settings,
        host=settings.get("host") or default_host,
        port=None if port is None else int(port),
        num_workers=int(settings.get("num_workers") or 1),
    )


def is_instance(value: object) -> bool:
    """Whether a top-level value defines a server."""
    return isinstance(value, Mapping) and any(kind in value for kind in SERVER_KINDS)


def instance_names(values: Mapping[str, Any]) -> list[str]:
    return [str(name) for name in values if is_instance(values[name])]


def block_of(values: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The implementation's block of the instance with this name; None if there is none."""
    instance = values.get(name)
    for kind in SERVER_KINDS:
        if isinstance(instance, Mapping) and isinstance(instance.get(kind), Mapping):
            block = next(iter(instance[kind].values()), None)
            return block if isinstance(block, Mapping) else None
    return None
