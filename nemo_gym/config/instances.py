"""Server instances: what a resolved configuration says about each server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.types import ServerKind


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
    """The implementation's block, as plain resolved data. Not to be changed."""
    host: str
    port: int | None
    """None until `assign_ports` has picked one."""
    num_workers: int

    @property
    def path(self) -> str:
        """Where its block stands in the configuration, as a dotted key."""
        return f"{self.name}.{self.kind}.{self.implementation}"

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@dataclass(frozen=True)
class InstancePath:
    """Where the block of an instance stands: `<name>.<kind>.<implementation>`."""

    name: str
    kind: ServerKind
    implementation: str

    def __str__(self) -> str:
        return f"{self.name}.{self.kind}.{self.implementation}"


def instance_at(values: Mapping[str, Any], path: InstancePath, default_host: str) -> ServerInstance:
    """The instance whose (valid) block stands at this path."""
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
