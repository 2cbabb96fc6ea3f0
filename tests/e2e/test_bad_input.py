"""`ng_run` on bad input: one message that says what to do, the right exit code, nothing left running."""

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.commands import free_port, processes_in, run_command
from tests.support.components import SERVER, write_component, write_files


@dataclass(frozen=True)
class Case:
    """A mistake of a user, and the expected message and exit code."""

    break_folder: Callable[[Path], object]
    messages: tuple[str, ...]
    code: int = 2
    arguments: tuple[str, ...] = ()


def config(text: str) -> Callable[[Path], None]:
    return lambda folder: write_files(folder, {"good.yaml": text})


def app(text: str, files: dict[str, str] | None = None) -> Callable[[Path], object]:
    return lambda folder: write_component(folder, "good", text, files)


BLOCK = "{resources_servers: {good: {entrypoint: app.py, domain: other}}}"
TWICE = "{resources_servers: {good: {entrypoint: app.py, domain: x}, bad: {entrypoint: app.py, domain: x}}}"
REFERS = (
    "good: {responses_api_agents: {good: {entrypoint: app.py, model_server: "
    "{type: responses_api_models, name: polcy_model}}}}\n"
    "policy_model: {responses_api_models: {m: {entrypoint: app.py}}}"
)
LEAKS = SERVER.replace("app.post", "raise ValueError('bad key sk-very-secret')\n        app.post")
CASES = {
    "a missing config path": Case(
        lambda folder: (folder / "good.yaml").rename(folder / "goods.yaml"),
        ("'good.yaml'", "the command line", "did you mean", "goods.yaml"),
    ),
    "a config file that names a missing file": Case(
        config("config_paths: [nowhere.yaml]"), ("'nowhere.yaml'", "/good.yaml: no such file")
    ),
    "malformed YAML": Case(config("good:\n  a: [1\nb: 2"), ("good.yaml:3:", "correct the YAML")),
    "an unknown reference": Case(
        config(REFERS),
        ("good.responses_api_agents.good.model_server", "good.yaml", "did you mean policy_model?"),
    ),
    "two instances with one name": Case(
        config(f"good: {TWICE}"), ("two instances have the same name: 'good'", "good.yaml", "rename one")
    ),
    "an app that raises at import": Case(
        app("\nimport math\nmath.sqrt(-1)"), ("good/app.py:3 raised ValueError", "math domain error")
    ),
    "a package that is not installed": Case(
        app("import absent_package"), ("'absent_package'", "pip install absent_package")
    ),
    "a server that never becomes ready": Case(
        app("print('loading', flush=True)\nimport time\ntime.sleep(1000)"),
        ("good is not ready after 9 s", "  loading", "+startup_timeout_s="),
        arguments=("+startup_timeout_s=9",),  # it has to print within this time
    ),
    "a server that closes its pipes and continues": Case(
        app("import os, time\nos.closerange(3, 64)\ntime.sleep(1000)"),
        ("good is not ready after 5 s", "+startup_timeout_s="),
        arguments=("+startup_timeout_s=5",),
    ),
    "a misspelt key of a server": Case(
        lambda folder: None,
        ("good.resources_servers.good.num_worker: unknown", "+good.resources_servers.good.num_workers=2"),
        arguments=("+good.resources_servers.good.num_worker=2",),
    ),
    "a list of paths that is not closed": Case(
        lambda folder: None, ("has an unmatched bracket",), arguments=("+config_paths=[good.yaml",)
    ),
    "a server that dies at its start": Case(
        app("print('so it ends', flush=True)\nimport os\nos._exit(9)"),
        ("good died (exit code 9)", "  so it ends"),
        code=1,
    ),
    "a message with a secret in it": Case(
        app(LEAKS),
        ("ValueError while it was set up: bad key ****",),
        arguments=("+policy_api_key=sk-very-secret",),
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a valid configuration."""
    write_component(tmp_path, "good")
    write_files(tmp_path, {"good.yaml": f"good: {BLOCK}"})
    yield tmp_path
    assert processes_in(tmp_path) == []


@pytest.mark.parametrize("name", CASES)
def test_mistake_is_reported_in_one_message(folder: Path, name: str) -> None:
    case = CASES[name]
    case.break_folder(folder)
    port = f"+head_server.port={free_port()}"
    done = run_command("ng_run", "+config_paths=[good.yaml]", port, *case.arguments, cwd=folder)
    assert done.returncode == case.code, done.stderr
    assert all(text in done.stderr for text in case.messages), done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "Fatal Python error" not in done.stdout + done.stderr
    assert "sk-very-secret" not in done.stdout + done.stderr
    assert done.stderr.partition(":")[0] in ERRORS, done.stderr


ERRORS = {
    "ConfigError",
    "ConfigPathNotFoundError",
    "ConfigSyntaxError",
    "ComponentError",
    "ServerDiedError",
    "ServerNotReadyError",
    "ServerRefNotFoundError",
}


def test_port_in_use_is_named_with_the_key_that_changes_it(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        given = f"+good.resources_servers.good.port={port}"
        done = run_command("ng_run", "+config_paths=[good.yaml]", given, cwd=folder)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"127.0.0.1:{port}" in done.stderr
    assert "+good.resources_servers.good.port=<port>" in done.stderr


def test_run_without_servers_says_how_to_configure_some(folder: Path) -> None:
    done = run_command("ng_run", cwd=folder)
    assert done.returncode == 2
    assert "no servers to run" in done.stderr and "+config_paths=" in done.stderr
