import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

import nemo_gym.global_config as published
from nemo_gym.errors import ConfigPathNotFoundError, ServerRefNotFoundError
from nemo_gym.global_config import (
    GlobalConfigDictParser,
    GlobalConfigDictParserConfig,
    get_first_server_config_dict,
    get_global_config_dict,
    get_hf_token,
    get_wandb_run,
    maybe_get_global_config_dict,
    set_global_config_dict,
)
from tests.gym.config.conftest import Write


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    set_global_config_dict(None)
    yield
    set_global_config_dict(None)


def test_every_published_name_exists() -> None:
    assert all(hasattr(published, name) for name in published.__all__)


def test_configuration_that_is_set_is_the_one_that_is_got() -> None:
    assert maybe_get_global_config_dict() is None
    assert get_hf_token() is None
    values = OmegaConf.create({"hf_token": "hf_abc"})
    set_global_config_dict(values)
    assert get_global_config_dict() is values
    assert get_hf_token() == "hf_abc"
    assert get_wandb_run() is None
    set_global_config_dict({"a": {"b": 1}})
    assert isinstance(get_global_config_dict().a, DictConfig)


def test_without_a_configuration_the_command_line_is_read_once(
    two_files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["x.py", two_files, "+policy_base_url=x", "+policy_api_key=k", "+limit=3"]
    monkeypatch.setattr(sys, "argv", argv)
    values = get_global_config_dict()
    assert values.limit == 3
    assert 10001 <= values.calc.resources_servers.calculator.port <= 20000
    assert get_global_config_dict() is values is maybe_get_global_config_dict()


def test_parser_lays_the_initial_values_between_env_yaml_and_command_line(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.yaml", "x: file\ny: file\nz: file")
    write("env.yaml", "x: env\ny: env")
    monkeypatch.setattr(sys, "argv", ["x.py", "+z=line"])
    initial = OmegaConf.create({"config_paths": ["a.yaml"], "y": "initial", "z": "initial"})
    values = GlobalConfigDictParser().parse(GlobalConfigDictParserConfig(initial_global_config_dict=initial))
    assert (values.x, values.y, values.z) == ("env", "initial", "line")


def test_parser_skips_the_given_fields(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("env.yaml", "x: env")
    other = write("other.yaml", "x: other")
    monkeypatch.setattr(sys, "argv", ["x.py", "+y=line"])
    parse = GlobalConfigDictParser().parse
    skipped = parse(GlobalConfigDictParserConfig(skip_load_from_cli=True, skip_load_from_dotenv=True))
    assert ("x" in skipped, "y" in skipped) == (False, False)
    assert parse(GlobalConfigDictParserConfig(dotenv_path=other)).x == "other"
    with pytest.raises(ConfigPathNotFoundError, match=r"gone\.yaml'?: no such file"):
        parse(GlobalConfigDictParserConfig(dotenv_path=tmp_path / "gone.yaml"))


def test_block_of_an_instance_is_found_by_its_name() -> None:
    values = OmegaConf.create(
        {"calc": {"resources_servers": {"calculator": {"entrypoint": "app.py"}}}, "x": 1}
    )
    assert get_first_server_config_dict(values, "calc").entrypoint == "app.py"
    with pytest.raises(
        ServerRefNotFoundError, match="no server 'clac' in the configuration; did you mean calc"
    ):
        get_first_server_config_dict(values, "clac")
    with pytest.raises(ServerRefNotFoundError, match="no server 'x'"):
        get_first_server_config_dict(values, "x")


def test_import_loads_neither_omegaconf_nor_hydra_nor_yaml() -> None:
    code = (
        "import sys, nemo_gym.config as c; print({'omegaconf', 'hydra', 'yaml', 'antlr4'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "set()"
