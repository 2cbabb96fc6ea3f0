from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from tests.gym.config.conftest import Load, Write


def test_later_files_override_earlier_ones(write: Write, load: Load) -> None:
    write("a.yaml", "x: {p: 1, q: 1}\nlist: [1, 2]")
    write("b.yaml", "x: {q: 2, r: 2}\nlist: [3]")
    data = load("+config_paths=[a.yaml,b.yaml]").data
    assert data["x"] == {"p": 1, "q": 2, "r": 2}
    assert data["list"] == [3]


def test_file_overrides_the_files_it_names(write: Write, load: Load) -> None:
    write("low.yaml", "x: low\ny: low")
    write("low2.yaml", "y: low2\nz: low2")
    write("top.yaml", "config_paths: [low.yaml, low2.yaml]\nz: top")
    config = load("+config_paths=[top.yaml]")
    assert {key: config.data[key] for key in "xyz"} == {"x": "low", "y": "low2", "z": "top"}
    assert [path.name for path in config.config_paths] == ["low.yaml", "low2.yaml", "top.yaml"]
    assert config.data["config_paths"] == ["top.yaml"]


def test_file_included_twice_is_merged_before_both_including_files(write: Write, load: Load) -> None:
    write("shared.yaml", "x: shared\ny: shared")
    write("left.yaml", "config_paths: [shared.yaml]\nx: left")
    write("right.yaml", "config_paths: shared.yaml\ny: right")
    data = load("+config_paths=[left.yaml,right.yaml]").data
    assert (data["x"], data["y"]) == ("left", "right")


def test_circle_of_files_is_an_error_that_names_the_chain(write: Write, load: Load) -> None:
    write("a.yaml", "config_paths: [b.yaml]")
    write("b.yaml", "config_paths: [c.yaml]")
    write("c.yaml", "config_paths: [b.yaml]")
    with pytest.raises(
        ConfigError, match=r"circular config_paths: \S+b\.yaml -> \S+c\.yaml -> \S+b\.yaml; remove"
    ):
        load("+config_paths=[a.yaml]")


def test_missing_file_is_reported_with_its_reference_searched_folders_and_close_matches(
    write: Write, load: Load, tmp_path: Path
) -> None:
    right = write("resources_servers/zwiebelkuchen/configs/zwiebelkuchen.yaml", "x: 1")
    top = write("top.yaml", "config_paths: [resources_servers/zwiebelkuchn/config/zwiebelkuchen.yml]")
    with pytest.raises(ConfigPathNotFoundError) as caught:
        load("+config_paths=[top.yaml]")
    message = str(caught.value)
    assert "'resources_servers/zwiebelkuchn/config/zwiebelkuchen.yml'" in message
    assert f"named by {top}" in message
    assert f"\n  {tmp_path}" in message
    assert f"did you mean {right}?" in message
    assert "NEMO_GYM_EXTRA_ROOTS" in message


def test_missing_file_from_the_command_line_is_reported_as_such(load: Load) -> None:
    with pytest.raises(
        ConfigPathNotFoundError, match=r"'/no/such\.yaml', named by the command line: no such file"
    ):
        load("+config_paths=/no/such.yaml")


def test_config_paths_that_are_not_paths_are_refused(write: Write, load: Load) -> None:
    write("a.yaml", "config_paths: {x: 1}")
    with pytest.raises(ConfigError, match=r"a\.yaml: config_paths is {'x': 1}; write a list"):
        load("+config_paths=a.yaml")


def test_files_are_found_under_extra_roots_first(
    write: Write, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.yaml", "x: here")
    write("extra/a.yaml", "x: extra")
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path / "extra"))
    assert load("+config_paths=a.yaml").data["x"] == "extra"


def test_paths_may_contain_interpolations(write: Write, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    write("deep/b.yaml", "x: 1")
    write("a.yaml", "folder: deep\nconfig_paths: ['${folder}/b.yaml']")
    monkeypatch.setenv("CONFIG_NAME", "a")
    assert load("+config_paths=['${oc.env:CONFIG_NAME}.yaml']").data["x"] == 1


def test_env_yaml_is_above_the_files_and_below_the_command_line(write: Write, load: Load) -> None:
    write("a.yaml", "x: file\ny: file\nz: file")
    env = write("env.yaml", "y: env\nz: env")
    config = load("+config_paths=[a.yaml]", "+z=line")
    assert {key: config.data[key] for key in "xyz"} == {"x": "file", "y": "env", "z": "line"}
    assert config.config_paths[-1] == env.resolve()


def test_env_yaml_names_the_files_when_the_command_line_names_none(write: Write, load: Load) -> None:
    write("a.yaml", "x: a")
    write("b.yaml", "x: b")
    write("env.yaml", "config_paths: [a.yaml]")
    assert load().data["x"] == "a"
    assert load("+config_paths=b.yaml").data["x"] == "b"


def test_malformed_env_yaml_is_reported(write: Write, load: Load) -> None:
    write("env.yaml", "a: b: c")
    with pytest.raises(ConfigError, match=r"env\.yaml:1:5"):
        load()
