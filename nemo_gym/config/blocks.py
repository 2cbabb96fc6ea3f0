"""Which top-level keys are servers, and whether their blocks are valid.

A block that looks like a server but is not valid (an almost-server) is reported with all its errors. It is
never treated as a server.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nemo_gym.config.hints import Origins, defined_in, listed
from nemo_gym.config.instances import InstancePath
from nemo_gym.config.validation import problem_lines
from nemo_gym.config_types import BenchmarkDatasetConfig, DatasetConfig, Domain
from nemo_gym.errors import ConfigError
from nemo_gym.setting_names import close_matches
from nemo_gym.types import SERVER_KINDS, ServerKind


class ServerBlock(BaseModel):
    """The fields checked in every block: `BaseRunServerConfig` before host and port are known."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)

    entrypoint: str = Field(min_length=1)
    host: str | None = Field(default=None, min_length=1)
    port: int | None = Field(default=None, ge=1, le=65535)
    num_workers: int | None = Field(default=None, ge=1)
    datasets: list[Any] | None = None


@dataclass(frozen=True)
class AlmostServer:
    name: str
    problems: tuple[str, ...]


@dataclass(frozen=True)
class FoundServers:
    paths: tuple[InstancePath, ...]
    almost: tuple[AlmostServer, ...]


def find_servers(values: Mapping[str, Any], origins: Origins) -> FoundServers:
    """All servers in the order of the files, and all almost-servers."""
    paths: list[InstancePath] = []
    almost: list[AlmostServer] = []
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, Mapping):
            continue
        path = _server_path(name, value, origins)
        problems = _misspelt_kinds(name, value) if path is None else _block_problems(path, value)
        if problems:
            almost.append(AlmostServer(name, tuple(problems)))
        elif path is not None:
            paths.append(path)
    return FoundServers(tuple(paths), tuple(almost))


def _server_path(name: str, value: Mapping[str, Any], origins: Origins) -> InstancePath | None:
    """The path of this instance's block; its implementation is empty if the block names none."""
    kinds: list[ServerKind] = [kind for kind in SERVER_KINDS if kind in value]
    if not kinds:
        return None
    blocks = [(kind, block) for kind in kinds for block in _implementations(value[kind])]
    if len(blocks) > 1 or len(kinds) > 1:
        found = ", ".join(f"{kind}/{block}" for kind, block in blocks) or ", ".join(kinds)
        raise ConfigError(
            f"two instances have the same name: {name!r} is {found}{defined_in(name, origins)}; "
            f"rename one of them, or remove one with ~{name}.{'.'.join(blocks[0] if blocks else kinds[:1])}"
        )
    return InstancePath(name, *blocks[0]) if blocks else InstancePath(name, kinds[0], "")


def _implementations(value: object) -> list[str]:
    return [key for key in value if isinstance(key, str)] if isinstance(value, Mapping) else []


def _block_problems(path: InstancePath, value: Mapping[str, Any]) -> list[str]:
    if not path.implementation:
        example = f"{path.kind}: {{<implementation>: {{entrypoint: app.py}}}}"
        return [f"{path.name}.{path.kind}: has no implementation; write {example}"]
    block = value[path.kind][path.implementation]
    if not isinstance(block, Mapping):
        return [f"{path}: {block!r} is not a mapping; it needs at least `entrypoint: app.py`"]
    return [*_field_problems(path, block), *_domain_problems(path, block), *_dataset_problems(path, block)]


def _field_problems(path: InstancePath, block: Mapping[str, Any]) -> list[str]:
    try:
        ServerBlock.model_validate(dict(block))
    except ValidationError as error:
        return problem_lines(error, str(path), ServerBlock)
    return []


def _domain_problems(path: InstancePath, block: Mapping[str, Any]) -> Iterator[str]:
    domain = block.get("domain")
    if path.kind == "resources_servers" and not (isinstance(domain, str) and domain):
        known = ", ".join(Domain)
        state = "required but not set" if domain in (None, "") else f"{domain!r} is not allowed"
        yield f"{path}.domain: {state}; write any text, usually one of {known}"


def _dataset_problems(path: InstancePath, block: Mapping[str, Any]) -> Iterator[str]:
    datasets = block.get("datasets")
    for index, entry in enumerate(datasets if isinstance(datasets, list) else []):
        is_benchmark = isinstance(entry, Mapping) and entry.get("type") == "benchmark"
        dataset = BenchmarkDatasetConfig if is_benchmark else DatasetConfig
        try:
            dataset.model_validate(entry)
        except ValidationError as error:
            yield from problem_lines(error, f"{path}.datasets.{index}", dataset)


def _misspelt_kinds(name: str, value: Mapping[str, Any]) -> list[str]:
    if _holds_block(value) and close_matches(name, SERVER_KINDS, 0.8):
        return [
            f"{name}: not allowed at the top level; put it under an instance name, my_server: {{{name}: ...}}"
        ]
    misspelt = (
        (key, close_matches(str(key), SERVER_KINDS, 0.8)) for key in value if _holds_block(value[key])
    )
    return [
        f"{name}.{key}: not a kind of server; did you mean {close[0]}?" for key, close in misspelt if close
    ]


def _holds_block(value: object) -> bool:
    return isinstance(value, Mapping) and any(
        isinstance(block, Mapping) and "entrypoint" in block for block in value.values()
    )


def almost_server_message(almost: Sequence[AlmostServer], origins: Origins) -> str:
    """One message for all of them."""
    lines = (f"{line}{defined_in(server.name, origins)}" for server in almost for line in server.problems)
    names = ", ".join(server.name for server in almost)
    return (
        f"entries that look like servers but are not valid: {names}{listed(lines)}\n"
        "correct the configuration, or ignore such entries with +error_on_almost_servers=false"
    )
