"""Component folders as modules: found under any root, without name collisions."""

import asyncio
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.config import config_from_bytes, dump_config, load_config
from nemo_gym.config_types import ComponentError
from nemo_gym.launch import host_embedded
from tests.support.components import SERVER, write_component, write_files


def ask(config_paths: str | list[str], *servers: str) -> list[Any]:
    """Host the servers in this process; return the response of each to `/ask`."""

    async def call_all() -> list[Any]:
        async with nemo_gym.open_servers(config_paths) as client:
            responses = [await client.post(server, "/ask", json={}) for server in servers]
            return [(await response.json())["result"] for response in responses]

    return asyncio.run(call_all())


def load_error(config_path: str) -> str:
    with pytest.raises(ComponentError) as caught:
        ask(config_path)
    return str(caught.value)


def test_component_is_found_in_the_working_directory(folder: Path) -> None:
    assert ask(write_component(folder, "here"), "here") == ["plain"]


def test_component_is_found_under_extra_roots(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_component(folder / "second", "elsewhere")
    (folder / "first").mkdir()
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", f"{folder / 'first'}:{folder / 'second'}")
    assert ask(config, "elsewhere") == ["plain"]


def test_shipped_component_is_found_from_any_folder(folder: Path) -> None:
    async def calculate() -> Any:
        paths = ["resources_servers/calculator/configs/calculator.yaml", "model.yaml"]
        async with nemo_gym.open_servers(paths) as client:
            response = await client.post("calculator", "/calculator", json={"expression": "6*7"})
            return await response.json()

    write_files(folder, {"model.yaml": OWN_MODEL})
    write_files(folder / "responses_api_models/own_model", {"app.py": OWN_MODEL_APP})
    assert asyncio.run(calculate()) == "42"


OWN_MODEL = "policy_model: {responses_api_models: {own_model: {entrypoint: app.py}}}"
OWN_MODEL_APP = """
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel


class Model(SimpleResponsesAPIModel):
    config: BaseResponsesAPIModelConfig
"""


def test_copy_of_a_user_shadows_the_shipped_component(folder: Path) -> None:
    assert ask(write_component(folder, "calculator"), "calculator") == ["plain"]


def test_extra_root_comes_before_the_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_component(folder, "twice", SERVER + "RESULT = 'working directory'")
    write_component(folder / "extra", "twice", SERVER + "RESULT = 'extra root'")
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(folder / "extra"))
    assert ask(config, "twice") == ["extra root"]


def test_roots_are_those_of_the_moment_at_which_the_configuration_was_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = "from utils import WORD\n" + SERVER + "RESULT = WORD"
    path = write_component(folder / "then", "settled", app, {"utils.py": "WORD = 'then'"})
    write_component(folder / "now", "settled", app, {"utils.py": "WORD = 'now'"})
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(folder / "then"))
    config = config_from_bytes(dump_config(load_config(path)))  # as a worker process receives it
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(folder / "now"))

    async def call() -> Any:
        async with host_embedded(config) as client:
            return await (await client.post("settled", "/ask", json={})).json()

    assert asyncio.run(call())["result"] == "then"


def test_one_name_under_two_roots_is_resolved_per_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for root in ("a", "b"):
        app = "from utils import WORD\n" + SERVER + "RESULT = WORD"
        config = write_component(folder / root, "wanders", app, {"utils.py": f"WORD = '{root}'"})
    found = []
    for roots in ("a", "b", "a", "b:a", "a:b"):
        monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", ":".join(str(folder / root) for root in roots.split(":")))
        found += ask(config, "wanders")
    assert found == ["a", "b", "a", "b", "a"]


def test_shadowing_component_does_not_import_siblings_of_the_shadowed_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_component(folder / "low", "borrower", files={"only_below.py": "WORD = 1"})
    write_component(folder / "high", "borrower", "import only_below\n" + SERVER)
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", f"{folder / 'high'}:{folder / 'low'}")
    assert "only_below" in load_error(config)


def test_siblings_of_the_same_name_never_collide(folder: Path) -> None:
    app = "from utils import WORD\n" + SERVER + "RESULT = WORD"
    paths = [
        write_component(folder, name, app, {"utils.py": f"WORD = '{name}'"}) for name in ("left", "right")
    ]
    assert ask(paths, "left", "right") == ["left", "right"]
    assert "utils" not in sys.modules


@pytest.mark.parametrize(
    "imports",
    [
        "import helper\nimport resources_servers.{name}.helper as full",
        "import resources_servers.{name}.helper as full\nimport helper",
        "import helper\nfrom resources_servers.{name} import helper as full",
        "import helper\nfrom . import helper as full",
        "import inner.deep as helper\nimport resources_servers.{name}.inner.deep as full",
        "import inner.deep\nhelper = inner.deep\nfrom inner import deep as full",
        "from inner import *\nhelper = deep\nfrom .inner import deep as full",
    ],
)
def test_bare_and_full_names_give_the_same_module(folder: Path, imports: str) -> None:
    name = f"same_{folder.name}"
    app = imports.format(name=name) + "\n" + SERVER + "RESULT = helper is full and helper.WORD"
    inner = "from . import deep\n__all__ = ['deep']"
    files = {"helper.py": "WORD = 1", "inner/__init__.py": inner, "inner/deep.py": "WORD = 1"}
    assert ask(write_component(folder, name, app, files), name) == [1]


def test_entry_module_can_be_imported_by_its_siblings(folder: Path) -> None:
    app = SERVER + "from helper import reply\nRESULT = reply"
    helper = f"import app\nimport resources_servers.circle.app as full\nreply = app is full and '{id}'"
    files = {"helper.py": helper.replace(str(id), "itself")}
    assert ask(write_component(folder, "circle", app, files), "circle") == ["itself"]


def test_sibling_imported_inside_a_function_belongs_to_the_component(folder: Path) -> None:
    app = SERVER.replace('return {"result": RESULT}', "import late\n        return {'result': late.WORD}")
    paths = [
        write_component(folder, name, app, {"late.py": f"WORD = '{name}'"}) for name in ("lazy_a", "lazy_b")
    ]
    assert ask(paths, "lazy_a", "lazy_b") == ["lazy_a", "lazy_b"]


def test_sibling_package_without_init_file_can_be_imported(folder: Path) -> None:
    app = "from lib.words import WORD\n" + SERVER + "RESULT = WORD"
    config = write_component(folder, "plain_folder", app, {"lib/words.py": "WORD = 'found'"})
    assert ask(config, "plain_folder") == ["found"]


def test_siblings_do_not_shadow_the_standard_library(folder: Path) -> None:
    app = (
        "import random, types\n"
        + SERVER
        + "RESULT = hasattr(random, 'randint') and hasattr(types, 'ModuleType')"
    )
    files = {"random.py": "raise SystemExit('sibling')", "types.py": "raise SystemExit('sibling')"}
    assert ask(write_component(folder, "modest", app, files), "modest") == [True]


def test_data_folder_of_a_component_does_not_shadow_an_installed_package(folder: Path) -> None:
    app = "import yaml\n" + SERVER + "RESULT = hasattr(yaml, 'safe_load')"
    assert ask(write_component(folder, "yamls", app, {"yaml/notes.txt": ""}), "yamls") == [True]


def test_package_file_of_a_component_runs_before_its_app(folder: Path) -> None:
    app = "from resources_servers.packaged import WORD\n" + SERVER + "RESULT = WORD"
    config = write_component(
        folder, "packaged", app, {"__init__.py": "from utils import WORD", "utils.py": "WORD = 1"}
    )
    assert ask(config, "packaged") == [1]


def test_import_after_hosting_uses_the_first_root_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_component(folder / "a", "moves", SERVER + "RESULT = 'a'", {"serve.py": SERVER + "RESULT = 'a'"})
    write_component(folder / "b", "moves", SERVER + "RESULT = 'b'")
    block = "{resources_servers: {moves: {entrypoint: serve.py, domain: other}}}"
    write_files(folder, {"moves.yaml": f"moves: {block}"})
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", f"{folder / 'b'}:{folder / 'a'}")
    assert ask("moves.yaml", "moves") == ["a"]  # the only one with this entrypoint
    for name in [name for name in sys.modules if name.startswith("resources_servers.moves")]:
        del sys.modules[name]
    assert import_module("resources_servers.moves.app").RESULT == "b"


def test_entrypoint_may_have_another_name_and_be_in_a_subfolder(folder: Path) -> None:
    write_component(folder, "deep_entry", "raise SystemExit", {"src/serve.py": SERVER + "RESULT = __name__"})
    block = "{resources_servers: {deep_entry: {entrypoint: src/serve.py, domain: other}}}"
    write_files(folder, {"deep.yaml": f"deep_entry: {block}"})
    assert ask("deep.yaml", "deep_entry") == ["resources_servers.deep_entry.src.serve"]


def test_one_component_can_be_two_instances(folder: Path) -> None:
    write_component(folder, "both", SERVER.replace("RESULT}", "self.config.name}"))
    block = "{resources_servers: {both: {entrypoint: app.py, domain: other}}}"
    write_files(folder, {"two.yaml": f"one: {block}\nother: {block}"})
    assert ask("two.yaml", "one", "other") == ["one", "other"]


def test_missing_component_is_an_error_that_lists_searched_folders(folder: Path) -> None:
    write_files(
        folder, {"no.yaml": "gone: {resources_servers: {goner: {entrypoint: app.py, domain: other}}}"}
    )
    message = load_error("no.yaml")
    assert "gone: resources_servers/goner/app.py not found in" in message
    assert str(folder) in message and "NEMO_GYM_EXTRA_ROOTS" in message


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        (
            "\n\nraise RuntimeError('no such luck')",
            ":3 raised RuntimeError while it was imported: no such luck",
        ),
        ("x = 1\ndef f(:\n", ":2 raised SyntaxError"),
        ("import sys\nsys.exit(0)", ":2 raised SystemExit"),
        ("from helper import x", "helper.py:2 raised ZeroDivisionError"),
        ("import inner", "inner/__init__.py:1 raised KeyError"),
        ("import broken", "broken.py:2 raised SyntaxError"),
        (
            "from nemo_gym.server_utils import nothing",
            "raised ImportError while it was imported: cannot import",
        ),
    ],
)
def test_error_at_import_of_an_app_is_reported_with_file_and_line(
    folder: Path, app: str, expected: str
) -> None:
    name = f"raises_{folder.name}"
    message = load_error(
        write_component(
            folder, name, app, {"helper.py": "\nx = 1/0", "broken.py": "\n1 +", "inner/__init__.py": "{}[1]"}
        )
    )
    assert message.startswith(f"{name}: {folder}/resources_servers/{name}/")
    assert expected in message


def test_repaired_component_loads_on_the_next_attempt(folder: Path) -> None:
    config = write_component(folder, "repaired", "raise RuntimeError")
    load_error(config)
    write_component(folder, "repaired")
    assert ask(config, "repaired") == ["plain"]


@pytest.mark.parametrize("where", ["at import", "while it is set up"])
@pytest.mark.parametrize("requirements", [True, False])
def test_package_that_is_not_installed_is_named_with_the_pip_command(
    folder: Path, where: str, requirements: bool
) -> None:
    app = "import absent_package.part\n" + SERVER
    if where != "at import":
        app = SERVER.replace("app.post", "import absent_package.part\n        app.post")
    name = f"absent_{where.replace(' ', '_')}_{requirements}".lower()
    config = write_component(folder, name, app, {"requirements.txt": "absent"} if requirements else {})
    message = load_error(config)
    file = folder / "resources_servers" / name / "requirements.txt"
    command = f"pip install -r {file}" if requirements else "pip install absent_package"
    assert "needs the package 'absent_package', which is not installed" in message
    assert message.endswith(command)


@pytest.mark.parametrize("module", ["resources_servers.{name}.absent", "yaml.absent", "nemo_gym.absent"])
def test_module_missing_from_a_package_that_is_there_is_not_a_missing_package(
    folder: Path, module: str
) -> None:
    name = f"partly_{module.partition('.')[0]}"
    module = module.format(name=name)
    message = load_error(write_component(folder, name, f"import {module}"))
    assert "pip install" not in message
    assert f"No module named '{module}'" in message


@pytest.mark.parametrize(
    ("app", "found"),
    [
        ("", "none"),
        ("from nemo_gym.base_resources_server import SimpleResourcesServer", "none"),
        (SERVER + "class Other(SimpleResourcesServer): pass", "Server, Other"),
    ],
)
def test_app_must_define_exactly_one_server_class(folder: Path, app: str, found: str) -> None:
    name = f"classes_{folder.name}"
    assert f"must define exactly one server class, found: {found};" in load_error(
        write_component(folder, name, app)
    )


def test_base_class_of_the_components_own_is_not_a_second_server(folder: Path) -> None:
    app = SERVER + "class Better(Server): pass\n"
    assert ask(write_component(folder, "derived", app), "derived") == ["plain"]
