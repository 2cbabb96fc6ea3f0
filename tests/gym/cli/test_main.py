"""The umbrella `ng` and the `ng_*` entry points, as processes."""

import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from nemo_gym import __version__
from nemo_gym.cli.main import COMMANDS, main
from nemo_gym.config import parse_arguments, string_fields
from tests.gym.cli.conftest import Ended, Ng
from tests.support.commands import BIN, ROOT, run_command
from tests.support.components import write_files
from tests.support.scripted_agent import MODEL_CONFIG


def test_every_command_is_an_entry_point_and_the_reverse() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts) == {"ng", *(f"ng_{name}" for name in COMMANDS)}
    assert set(scripts.values()) == {"nemo_gym.cli.main:main"}


@pytest.mark.parametrize("program", ["ng_version", "/usr/bin/ng_version", "ng_version.exe"])
def test_program_name_selects_the_command(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "--json"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert __version__ in json.loads(capsys.readouterr().out).values()


Umbrella = Callable[..., Ended]


@pytest.fixture
def umbrella(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Umbrella:
    """Runs `ng …` like its entry point."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["ng", *arguments])
        code = 0
        try:
            main()
        except SystemExit as ended:
            assert isinstance(ended.code, int)
            code = ended.code
        written = capfd.readouterr()
        return Ended(code, written.out, written.err)

    return run


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_umbrella_lists_the_commands(umbrella: Umbrella, arguments: tuple[str, ...]) -> None:
    done = umbrella(*arguments)
    assert (done.code, done.err) == (0, "")
    for name, summary in COMMANDS.items():
        assert any(line.split()[:1] == [name] and summary in line for line in done.out.splitlines())


@pytest.mark.parametrize("name", ["version", "ng_version", "--version", "-V"])
def test_umbrella_runs_a_command(umbrella: Umbrella, name: str) -> None:
    assert umbrella(name).out.startswith(f"handspring {__version__}")


def test_ng_accepts_dashes_for_underscores(umbrella: Umbrella) -> None:
    assert umbrella("dump-config", "--help").out.startswith("ng_dump_config:")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("validte", "did you mean `ng validate`?"),
        ("xyzzy", "`ng --help` lists"),
        ("--helf", "unknown command"),
    ],
)
def test_unknown_command_is_an_error_that_names_the_closest(umbrella: Umbrella, name: str, hint: str) -> None:
    done = umbrella(name)
    assert (done.code, done.out) == (2, "")
    assert repr(name) in done.err and hint in done.err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_the_entry_point_and_of_the_umbrella_is_the_same(umbrella: Umbrella, name: str) -> None:
    own = run_command(f"ng_{name}", "--help")
    assert (own.returncode, own.stderr) == (0, "")
    assert umbrella(name, "--help") == Ended(0, own.stdout, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_field_with_type_default_and_description(name: str) -> None:
    command = import_module(f"nemo_gym.cli.{name}").COMMAND
    text = command.help()
    assert COMMANDS[name] in text
    assert f"example: ng_{name}" in text
    lines = text.splitlines()
    for field, info in command.options.model_fields.items():
        at = next(index for index, line in enumerate(lines) if line.startswith(f"  +{field}="))
        shown = "required" if info.is_required() else "default "
        assert shown in lines[at]
        assert len(lines[at].partition("=")[2].partition(",")[0].strip()) > 2
        assert info.description, f"{field} has no description"
        assert info.description.split("\n")[0].strip() in lines[at + 1]


def test_help_spells_types_and_defaults_as_the_command_line_does() -> None:
    text = import_module("nemo_gym.cli.run").COMMAND.help()
    assert "+config_paths=  list of str, default []" in text
    assert "+startup_timeout_s=  float, default 300.0" in text
    assert "+restart_policy=  off | on_failure, default off" in text
    assert "+json_output=  bool, default false" in import_module("nemo_gym.cli.status").COMMAND.help()
    assert "+entrypoint=  str, required" in import_module("nemo_gym.cli.test").COMMAND.help()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_required_fields_first_and_syntax_last(name: str) -> None:
    command = import_module(f"nemo_gym.cli.{name}").COMMAND
    *_, settings, ending = command.help().split("\n\n")
    shown = [line for line in settings.splitlines() if line.startswith("  +")]
    assert len(shown) == len(command.options.model_fields)
    is_optional = ["required" not in line for line in shown]
    assert is_optional == sorted(is_optional)
    assert ending.splitlines()[0].startswith("Each setting may be written +key=value, ")
    assert ("Any other key" in ending) == command.reads_files
    assert max(map(len, command.help().splitlines())) <= 140


def test_help_names_a_key_that_means_something_to_the_command() -> None:
    assert "+head_server.port=" in import_module("nemo_gym.cli.status").COMMAND.help()
    assert "+policy_model_name" not in import_module("nemo_gym.cli.status").COMMAND.help()
    assert "+head_server.port=" in import_module("nemo_gym.cli.aggregate_rollouts").COMMAND.help()


@pytest.mark.parametrize("name", COMMANDS)
def test_example_of_the_help_can_be_pasted(name: str) -> None:
    command = import_module(f"nemo_gym.cli.{name}").COMMAND
    example = command.help().split("\n\n")[1].removeprefix("example: ")
    program, *arguments = shlex.split(example.replace("\\\n", ""))  # split as a shell does
    assert program == f"ng_{name}"
    values = parse_arguments(command.named(arguments), string_fields(command.options)).values
    policy = {"policy_base_url", "policy_api_key", "policy_model_name"}
    assert set(values) <= {*command.options.model_fields, *policy}
    command.options.model_validate(values)
    if any(MODEL_CONFIG in path for path in values.get("config_paths", [])):
        assert policy <= set(values)


def test_help_is_shown_even_if_arguments_are_wrong(umbrella: Umbrella) -> None:
    done = umbrella("run", "+config_paths=[missing.yaml]", "--help")
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("name", ["ng", "ng_run"])
def test_terminal_without_unicode_is_supported(name: str) -> None:
    done = run_command(name, "--help", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.isascii()


@pytest.mark.parametrize("size", [10, 100_000])
def test_closed_output_pipe_is_not_an_error(tmp_path: Path, size: int) -> None:
    (tmp_path / "long.yaml").write_text("words: [" + "word," * size + "]")
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [str(BIN / "ng_dump_config"), "+config_paths=[long.yaml]"]
    done = subprocess.run(
        command, cwd=tmp_path, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["compare", "ng_compare", "collect-rollouts"])
def test_help_of_a_command_can_be_asked_for_in_two_ways(umbrella: Umbrella, name: str) -> None:
    done = umbrella("help", name)
    assert done == umbrella(name, "--help")
    assert done.code == 0 and done.out.startswith("ng_c")


def test_help_of_an_unknown_command_names_the_closest(umbrella: Umbrella) -> None:
    done = umbrella("help", "compar")
    assert done.code == 2 and "did you mean `ng compare`?" in done.err


COMMANDS_INTO_A_PIPE = [
    ["ng", "--help"],
    ["ng"],
    ["ng", "help", "collect_rollouts"],
    ["ng", "nonsense"],
    ["ng_version"],
    ["ng_status", "+hlp=1"],
    ["ng_status", "+head_server.port=1"],
    ["ng_dump_config"],
    ["ng_collect_rollouts", "--help"],
    ["ng_collect_rollouts", "+input_jsonl_fpath=/nowhere.jsonl", "+hosting=embedded"],
]


@pytest.mark.parametrize("command", COMMANDS_INTO_A_PIPE, ids=" ".join)
def test_closed_pipe_ends_a_command_without_a_traceback(command: list[str], tmp_path: Path) -> None:
    """Whether the reader of standard output closes it, or the reader of both."""
    for streams in ({"stdout": -1}, {"stdout": -1, "stderr": subprocess.STDOUT}):
        reading, writing = os.pipe()
        os.close(reading)
        errors = tmp_path / "errors"
        with errors.open("wb") as file:
            both = dict.fromkeys(streams, writing)
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]], cwd=tmp_path, **{"stderr": file, **both}
            )
        os.close(writing)
        assert process.wait(60) in (0, 2)
        assert "Traceback" not in errors.read_text() and "Exception ignored" not in errors.read_text()


def test_folder_in_place_of_a_file_is_one_clear_message(ng: Ng, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/rows.jsonl").touch()
    collect = ["+input_jsonl_fpath=data", "+output_jsonl_fpath=out.jsonl", "+dry_run=true"]
    ng("collect_rollouts", *collect).assert_complains("data is a folder; give one of its files: rows.jsonl")
    prompts = ["+input_jsonl_fpath=data", "+prompt_config=p.yaml", "+output_jsonl_fpath=out.jsonl"]
    write_files(tmp_path, {"p.yaml": "user: x"})
    for name, arguments in {
        "materialize_prompts": prompts,
        "compare": ["data", "data"],
        "export": ["data", "out.parquet"],
        "reward_profile": ["data"],
        "aggregate_rollouts": ["+input_glob=data", "+output_jsonl_fpath=out.jsonl"],
        "validate": ["+config_paths=[data]"],
    }.items():
        done = ng(name, *arguments)
        done.assert_complains("data")
        assert len(done.err.splitlines()) <= 4, done.err
