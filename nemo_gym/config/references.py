"""References between servers: `{type: <kind>, name: <instance>}` anywhere in a server's block."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.config.hints import Origins, defined_in, listed
from nemo_gym.config.instances import ServerInstance
from nemo_gym.config_types import is_server_ref
from nemo_gym.errors import ServerRefNotFoundError
from nemo_gym.setting_names import close_matches


@dataclass(frozen=True)
class Reference:
    server: str
    """The instance that refers."""
    field: str
    """Dotted path of the field that refers."""
    kind: str
    name: str


def check_references(servers: Sequence[ServerInstance], origins: Origins) -> None:
    """Raise one error for all references that do not name an instance of their kind."""
    kinds = {server.name: server.kind for server in servers}
    broken = [ref for ref in references_of(servers) if kinds.get(ref.name) != ref.kind]
    if broken:
        lines = listed(_line(ref, kinds, origins) for ref in broken)
        raise ServerRefNotFoundError(
            f"references to servers that are not defined:{lines}\n"
            "correct the name, or add the config file that defines the server to config_paths"
        )


def references_of(servers: Sequence[ServerInstance]) -> Iterator[Reference]:
    for server in servers:
        for path, value in _references(server.settings, server.path):
            yield Reference(server.name, path, value["type"], value["name"])


def _references(value: Any, path: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    if is_server_ref(value):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _references(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _references(item, f"{path}.{index}")


def _line(ref: Reference, kinds: Mapping[str, str], origins: Origins) -> str:
    start = f"{ref.field}{defined_in(ref.server, origins)}: no server {ref.name!r} of kind {ref.kind}; "
    if ref.name in kinds:
        return f"{start}{ref.name!r} exists, but its kind is {kinds[ref.name]}; correct the `type`"
    same_kind = [name for name, kind in kinds.items() if kind == ref.kind]
    close = close_matches(ref.name, same_kind)
    if close:
        return f"{start}did you mean {' or '.join(close)}?"
    return f"{start}known: {', '.join(same_kind)}" if same_kind else f"{start}none of that kind is defined"
