"""The umbrella `ng` and the `ng_*` entry points, as processes."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from nemo_gym import __version__
from nemo_gym.cli.main import COMMANDS, main
from tests.gym.cli.conftest import Ended
from tests.support.commands import BIN, ROOT, run_command


def test_every_command_is_an_entry_point_and_the_reverse() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts) == {"ng", *(f"ng_{name}" for name in COMMANDS)}
    for target in scripts.values():
        module, _, function = target.partition(":")
        assert callable(getattr(import_module(module), function))


Umbrella = Callable[..., Ended]


@pytest.fixture
def umbrella(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Umbrella:
    """Runs `ng …` as its entry point does."""

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
    assert umbrella(name).out.startswith(f"nemo-gym {__version__}")


def test_umbrella_takes_dashes_for_underscores(umbrella: Umbrella) -> None:
    assert umbrella("dump-config", "--help").out.startswith("ng_dump_config:")


@pytest.mark.parametrize(
    ("name", "told"),
    [("validte", "did you mean `ng validate`?"), ("xyzzy", "`ng --help` lists"), ("--helf", "no command")],
)
def test_unknown_command_is_refused_with_the_nearest(umbrella: Umbrella, name: str, told: str) -> None:
    done = umbrella(name)
    assert (done.code, done.out) == (2, "")
    assert repr(name) in done.err and told in done.err


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


def test_help_comes_before_any_complaint(umbrella: Umbrella) -> None:
    done = umbrella("run", "+config_paths=[missing.yaml]", "--help")
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("name", ["ng", "ng_run"])
def test_terminal_without_unicode_is_no_trouble(name: str) -> None:
    done = run_command(name, "--help", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.isascii()


@pytest.mark.parametrize("size", [10, 100_000])
def test_reader_that_has_had_enough_is_no_trouble(tmp_path: Path, size: int) -> None:
    (tmp_path / "long.yaml").write_text("words: [" + "word," * size + "]")
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [str(BIN / "ng_dump_config"), "+config_paths=[long.yaml]"]
    done = subprocess.run(
        command, cwd=tmp_path, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")
