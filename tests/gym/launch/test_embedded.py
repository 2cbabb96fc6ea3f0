"""Embedded hosting: all servers in this process; closing them leaves nothing behind."""

import asyncio
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.config_types import (
    AlmostServerError,
    ComponentError,
    ConfigError,
    ConfigMissingValuesError,
    ConfigPathNotFoundError,
    ConfigSyntaxError,
    ServerRefNotFoundError,
)
from nemo_gym.global_config import maybe_get_global_config_dict
from nemo_gym.server_utils import ServerClient
from tests.support.components import SERVER, write_component, write_files

RETURNS_WORD = SERVER.replace("RESULT}", "get_global_config_dict().get('word')}") + (
    "from nemo_gym.global_config import get_global_config_dict\n"
)
"""A server that responds with the `word` of the configuration."""


def write_reader(folder: Path, name: str, app: str = RETURNS_WORD, key: str = "word") -> str:
    """Write a server that reads a key of the configuration; its file declares the key."""
    path = write_component(folder, name, app)
    with (folder / path).open("a") as file:
        file.write(f"{key}: null\n")
    return path


async def word(client: ServerClient, server: str) -> Any:
    response = await client.post(server, "/ask", json={})
    return (await response.json())["result"]


def assert_nothing_is_open() -> None:
    from nemo_gym.client import current_client

    assert current_client.get() is None
    assert maybe_get_global_config_dict() is None


@pytest.mark.parametrize("given", ["text", "path", "list", "list of paths", "tuple"])
def test_config_paths_may_be_one_or_several(folder: Path, given: str) -> None:
    path = write_reader(folder, "word_server")
    write_files(folder, {"word.yaml": "word: from a file"})
    paths: Any = {
        "text": path,
        "path": folder / path,
        "list": [path, "word.yaml"],
        "list of paths": [Path(path), folder / "word.yaml"],
        "tuple": (path, "word.yaml"),
    }[given]

    async def open_and_call() -> Any:
        async with nemo_gym.open_servers(paths) as client:
            return await word(client, "word_server")

    assert asyncio.run(open_and_call()) == (None if given in ("text", "path") else "from a file")


@pytest.mark.parametrize(
    "overrides",
    [
        {"word": {"inner": 3}},
        {"word.inner": 3},
        ["word.inner=3"],
        ["+word.inner=3"],
        ["--word.inner", "3"],
        ["+word={inner: 3}"],
    ],
)
def test_overrides_may_be_a_mapping_or_command_line_arguments(
    folder: Path, overrides: dict[str, Any] | list[str]
) -> None:
    path = write_reader(folder, "word_server")

    async def open_and_look() -> Any:
        async with nemo_gym.open_servers(path, overrides) as client:
            return client.global_config_dict["word"]["inner"]

    assert asyncio.run(open_and_look()) == 3


def test_environment_sees_the_configuration_it_is_hosted_with(folder: Path) -> None:
    path = write_reader(folder, "word_server")

    async def one_after_the_other() -> list[Any]:
        words = []
        for text in ("first", "second"):
            async with nemo_gym.open_servers(path, {"word": text}) as client:
                words.append(await word(client, "word_server"))
            assert_nothing_is_open()
        return words

    assert asyncio.run(one_after_the_other()) == ["first", "second"]


def test_configuration_is_available_at_import_and_at_setup(folder: Path) -> None:
    app = (
        "from nemo_gym.global_config import get_global_config_dict\n"
        + SERVER.replace("super().setup_webserver()", "super().setup_webserver()\n        at_setup()")
        + "RESULT = [get_global_config_dict()['word']]\n"
        + "def at_setup(): RESULT.append(get_global_config_dict()['word'])\n"
    )
    path = write_reader(folder, "early", app)

    async def open_and_call() -> Any:
        async with nemo_gym.open_servers(path, {"word": "hello"}) as client:
            return await word(client, "early")

    assert asyncio.run(open_and_call()) == ["hello", "hello"]


def test_nested_servers_leave_outer_ones_unchanged(folder: Path) -> None:
    outer_path = write_reader(folder, "outer")
    inner_path = write_reader(folder, "inner")

    async def nested() -> None:
        async with nemo_gym.open_servers(outer_path, {"word": "outside"}) as outer:
            async with nemo_gym.open_servers(inner_path, {"word": "inside"}) as inner:
                assert ServerClient.load_from_global_config() is inner
                assert await word(inner, "inner") == "inside"
                with pytest.raises(ConfigError, match="no server is named 'outer'"):
                    await inner.post("outer", "/ask", json={})
            assert ServerClient.load_from_global_config() is outer
            assert await word(outer, "outer") == "outside"

    asyncio.run(nested())
    assert_nothing_is_open()


def test_closing_inner_servers_does_not_break_calls_of_the_outer_ones(folder: Path) -> None:
    """Both use the HTTP client of the process; the inner servers close during a call of the outer ones."""
    path = write_reader(folder, "calls_out", CALLS_OUT, "url")
    inner_path = write_component(folder, "inner")

    async def nested() -> Any:
        arrived, release = asyncio.Event(), asyncio.Event()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            arrived.set()
            await release.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(slow, "127.0.0.1", 0) as upstream:
            url = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}/"
            async with nemo_gym.open_servers(path, {"url": url}) as outer:
                call = asyncio.create_task(word(outer, "calls_out"))
                await arrived.wait()
                async with nemo_gym.open_servers(inner_path):
                    pass
                release.set()
                return await call

    assert asyncio.run(nested()) == "ok"


CALLS_OUT = SERVER.replace(
    "RESULT}", "await (await request('GET', get_global_config_dict()['url'])).text()}"
) + ("from nemo_gym.global_config import get_global_config_dict\nfrom nemo_gym.server_utils import request\n")


def test_lifespans_run_and_end(folder: Path) -> None:
    path = write_component(folder, "alive", with_lifespan("pass"))
    up = folder / "resources_servers/alive/up"

    async def opened() -> None:
        async with nemo_gym.open_servers(path):
            assert up.exists()

    asyncio.run(opened())
    assert not up.exists()


def test_lifespan_ends_normally_when_the_caller_fails(folder: Path) -> None:
    path = write_component(folder, "unmoved", with_lifespan("pass"))
    up = folder / "resources_servers/unmoved/up"

    async def opened() -> None:
        async with nemo_gym.open_servers(path):
            assert up.exists()
            raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="the caller's own"):
        asyncio.run(opened())
    assert not up.exists()
    assert_nothing_is_open()


def with_lifespan(start: str) -> str:
    """An environment that creates the file `up` in its folder and deletes it at shutdown."""
    return SERVER.replace(
        "super().setup_webserver()",
        "super().setup_webserver()\n        app.router.lifespan_context = lifespan",
    ) + (
        "from contextlib import asynccontextmanager\n"
        "from pathlib import Path\n"
        "@asynccontextmanager\n"
        "async def lifespan(app):\n"
        "    Path(__file__).with_name('up').touch()\n"
        f"    {start}\n"
        "    yield\n"
        "    Path(__file__).with_name('up').unlink()\n"
    )


def test_client_reaches_no_server_after_closing(folder: Path) -> None:
    path = write_component(folder, "closed")

    async def after() -> None:
        async with nemo_gym.open_servers(path) as client:
            pass
        with pytest.raises(ConfigError, match="closed"):
            await client.post("closed", "/ask", json={})

    asyncio.run(after())


def test_open_file_limit_is_raised_to_the_hard_limit(folder: Path) -> None:
    path = write_component(folder, "files")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    try:

        async def opened() -> None:
            async with nemo_gym.open_servers(path):
                assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)

        asyncio.run(opened())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


Break = Callable[[Path], object]

BAD_INPUTS: dict[str, tuple[Break, type[ConfigError], str]] = {
    "path": (lambda f: f.joinpath("good.yaml").unlink(), ConfigPathNotFoundError, "good.yaml"),
    "yaml": (lambda f: write_files(f, {"good.yaml": "a: [1"}), ConfigSyntaxError, "good.yaml"),
    "missing value": (lambda f: write_files(f, {"good.yaml": "a: ???"}), ConfigMissingValuesError, "a"),
    "reference": (
        lambda f: write_files(
            f,
            {
                "good.yaml": "one: {resources_servers: {x: {entrypoint: app.py, domain: other, "
                "to: {type: responses_api_models, name: polcy}}}}"
            },
        ),
        ServerRefNotFoundError,
        "polcy",
    ),
    "almost a server": (
        lambda f: write_files(f, {"good.yaml": "one: {resources_servers: {x: {domain: other}}}"}),
        AlmostServerError,
        "one.resources_servers.x.entrypoint",
    ),
    "two with one name": (
        lambda f: write_files(
            f,
            {
                "good.yaml": "one: {resources_servers: {x: {entrypoint: a, domain: b}, "
                "y: {entrypoint: a, domain: b}}}"
            },
        ),
        ConfigError,
        "two instances have the same name: 'one'",
    ),
    "import": (lambda f: write_component(f, "good", "1/0"), ComponentError, "app.py:1"),
    "setup": (
        lambda f: write_component(f, "good", SERVER.replace("app.post", "1/0; app.post")),
        ComponentError,
        "app.py:11 raised ZeroDivisionError while it was set up",
    ),
    "settings": (
        lambda f: write_component(
            f, "good", SERVER.replace("ServerConfig\n\n", "ServerConfig\n    size: int\n")
        ),
        ComponentError,
        "size",
    ),
}


@pytest.mark.parametrize("kind", BAD_INPUTS)
def test_bad_input_is_an_error_of_its_own_type_and_leaves_nothing_open(folder: Path, kind: str) -> None:
    write_component(folder, "good")
    block = "{resources_servers: {good: {entrypoint: app.py, domain: other}}}"
    write_files(folder, {"good.yaml": f"good: {block}"})
    spoil, error, expected = BAD_INPUTS[kind]
    spoil(folder)

    async def opened() -> None:
        async with nemo_gym.open_servers("good.yaml"):
            raise AssertionError("opened")

    with pytest.raises(error) as caught:
        asyncio.run(opened())
    assert expected in str(caught.value)
    assert_nothing_is_open()


def test_servers_that_started_are_ended_when_a_later_one_fails(folder: Path) -> None:
    first = write_component(folder, "first", with_lifespan("pass"))
    second = write_component(folder, "second", with_lifespan("raise OSError('no disk')"))

    async def opened() -> None:
        async with nemo_gym.open_servers([first, second]):
            raise AssertionError("opened")

    with pytest.raises(
        ComponentError, match=r"second/app.py:\d+ raised OSError while it was started: no disk"
    ):
        asyncio.run(opened())
    assert (folder / "resources_servers/second/up").exists()
    assert not (folder / "resources_servers/first/up").exists()
    assert_nothing_is_open()


def test_error_of_an_environment_never_shows_a_secret(folder: Path) -> None:
    app = SERVER.replace(
        "app.post", "raise ValueError(get_global_config_dict()['policy_api_key'])\n        app.post"
    )
    path = write_component(
        folder, "leaks", app + "from nemo_gym.global_config import get_global_config_dict\n"
    )

    async def opened() -> None:
        async with nemo_gym.open_servers(path, {"policy_api_key": "sk-very-secret"}):
            raise AssertionError("opened")

    with pytest.raises(ComponentError) as caught:
        asyncio.run(opened())
    assert "sk-very-secret" not in str(caught.value)
    assert "****" in str(caught.value)


def test_importing_only_the_package_loads_no_web_framework() -> None:
    heavy = "{'fastapi', 'uvicorn', 'aiohttp', 'omegaconf'}"
    code = f"import sys, nemo_gym; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_servers_may_be_closed_from_another_task(folder: Path) -> None:
    path = write_reader(folder, "word_server")

    async def run() -> None:
        opened = nemo_gym.open_servers(path)
        await asyncio.create_task(opened.__aenter__())
        await asyncio.create_task(opened.__aexit__(None, None, None))

    asyncio.run(run())
    assert_nothing_is_open()


def test_overlapping_servers_each_see_a_configuration_while_any_is_open(folder: Path) -> None:
    path = write_reader(folder, "word_server")

    async def run() -> list[Any]:
        first = nemo_gym.open_servers(path, {"word": "first"})
        second = nemo_gym.open_servers(path, {"word": "second"})
        await first.__aenter__()
        client = await second.__aenter__()
        await first.__aexit__(None, None, None)
        received = await word(client, "word_server")
        await second.__aexit__(None, None, None)
        return [received, maybe_get_global_config_dict()]

    assert asyncio.run(run()) == ["second", None]


OWN_APP = """
from fastapi import FastAPI, Request
from nemo_gym.base_resources_server import BaseResourcesServerConfig, BaseVerifyRequest, SimpleResourcesServer
from nemo_gym.judge import JudgeError


class Server(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self):
        app = FastAPI()
        self.setup_session_middleware(app)
        app.post("/verify")(self.verify)
        return app

    async def verify(self, request: Request, body: BaseVerifyRequest):
        raise JudgeError("no response")
"""


def test_failed_judge_is_recorded_with_a_custom_application(folder: Path) -> None:
    path = write_component(folder, "own_app", OWN_APP)
    row = {"responses_create_params": {"input": "?"}, "response": {"output": []}, "task": 7}

    async def run() -> Any:
        async with nemo_gym.open_servers(path) as client:
            return await (await client.post("own_app", "/verify", json=row)).json()

    assert asyncio.run(run()) == row | {
        "reward": 0.0,
        "_ng_failure_class": "judge_failed",
        "_ng_failure_judge_error": "no response",
    }
