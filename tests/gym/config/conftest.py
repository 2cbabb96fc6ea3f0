from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from nemo_gym.config import GymConfig, load_config, parse_arguments

Write = Callable[[str, str], Path]
Load = Callable[..., GymConfig]

MODEL = """
policy_model:
  responses_api_models:
    openai_model:
      entrypoint: app.py
      openai_base_url: ${policy_base_url}
      openai_api_key: ${policy_api_key}
"""
ENVIRONMENT = """
calc:
  resources_servers:
    calculator: {entrypoint: app.py, domain: math}
calc_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: calc}
      model_server: {type: responses_api_models, name: policy_model}
      datasets:
      - {name: example, type: example, jsonl_fpath: data/example.jsonl}
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes files into a fresh working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def load(write: Write) -> Load:
    """Loads a configuration from arguments, like a command."""
    return lambda *argv: load_config(overrides=parse_arguments(argv))


@pytest.fixture
def two_files(write: Write) -> str:
    """Write a small valid configuration; return the argument that names its files."""
    write("calc.yaml", ENVIRONMENT)
    write("model.yaml", MODEL)
    return "+config_paths=[calc.yaml,model.yaml]"
