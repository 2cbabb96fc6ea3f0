"""Everything that commands print goes through `cli/output.py`, which makes it safe to show."""

import ast
import json
from pathlib import Path

import pytest
import yaml

from nemo_gym.cli import output
from tests.gym.cli.conftest import Ng

FOLDER = Path(output.__file__).parent
HOSTILE = "a\x1b[2Jb\x9bc\x7f\u202ed\u2028e\rf\x00"


def test_no_other_module_of_the_commands_prints() -> None:
    for path in FOLDER.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        prints = [one.lineno for one in calls if isinstance(one.func, ast.Name) and one.func.id == "print"]
        assert path.name == "output.py" or not prints, f"{path.name}:{prints}"


def test_control_characters_are_printed_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(f"{HOSTILE}\n\tplain ünïcode 数")
    output.complain(HOSTILE)
    shown = r"a\x1b[2Jb\x9bc\x7f\u202ed\u2028e\rf\x00"
    written = capsys.readouterr()
    assert (written.out, written.err) == (f"{shown}\n\tplain ünïcode 数\n", f"{shown}\n")


def test_json_is_safe_to_show_and_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    output.say_json({HOSTILE: [HOSTILE]})
    text = capsys.readouterr().out
    assert json.loads(text) == {HOSTILE: [HOSTILE]}
    assert text.replace("\n", "").isprintable()


def test_line_of_json_is_safe_to_show_and_unchanged() -> None:
    text = output.json_line({"hostile": HOSTILE, "plain": "ü"})
    assert json.loads(text) == {"hostile": HOSTILE, "plain": "ü"}
    assert text.isprintable()
    assert output.json_line({"plain": "ü"}) == '{"plain":"ü"}'


def test_dumped_configuration_is_safe_to_show_and_unchanged(ng: Ng, tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text(yaml.safe_dump({"note": HOSTILE, "plain": "ü"}), encoding="utf-8")
    done = ng("dump_config")
    assert yaml.safe_load(done.out)["note"] == HOSTILE
    assert done.out.replace("\n", "").isprintable()


def test_error_about_hostile_text_is_safe_to_show(ng: Ng) -> None:
    done = ng("validate", f"+config_paths=[{HOSTILE}]")
    assert done.code == 2
    assert done.err.replace("\n", "").isprintable()
