"""Every setting reaches the engine."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config import validate_fields
from nemo_gym.errors import ConfigError
from nemo_gym.local_engine import LocalEngine, find_weights
from responses_api_models.local_model.local_model_config import LocalModelConfig

PLACE = {"name": "policy_model", "host": "127.0.0.1", "port": 0, "entrypoint": "app.py"}
STAND_IN = """
import json, os, types

class CommonParams(types.SimpleNamespace):
    def __init__(self):
        parts = ("model", "cpuparams", "cpuparams_batch")
        super().__init__(**{part: types.SimpleNamespace() for part in parts})

class Server:
    listening_address = "http://127.0.0.1:1"

    def __init__(self, params):
        with open(os.environ["RECORDED"], "w") as file:
            json.dump(params, file, default=vars)
"""
"""The engine process loads this instead of llama.cpp: it only records its settings."""


def config(**settings: Any) -> LocalModelConfig:
    return LocalModelConfig.model_validate({**PLACE, **settings})


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "mine.gguf"
    file.touch()
    return file


def test_settings_are_passed_to_the_engine(weights: Path, tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("{{ messages }}")
    settings = config(
        model_path=str(weights),
        chat_template=str(template),
        slots=3,
        context=640,
        threads=5,
        max_restarts=7,
        restart_window_s=11.5,
    ).engine_settings()
    assert (settings.model_path, settings.chat_template) == (weights, "{{ messages }}")
    assert (settings.slots, settings.context) == (3, 640)
    assert (settings.threads, settings.prompt_threads) == (5, 5)
    assert (settings.max_restarts, settings.restart_window_s) == (7, 11.5)


def test_relative_files_are_searched_for_in_the_roots_of_the_configuration(
    weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages }}")
    files = {**PLACE, "model_path": weights.name, "chat_template": "mine.jinja"}
    settings = validate_fields(LocalModelConfig, files, roots=(tmp_path,)).engine_settings()
    assert (settings.model_path, settings.chat_template) == (weights, "{{ messages }}")


def test_default_model_gets_a_template_that_supports_tools() -> None:
    settings = config().engine_settings()
    assert settings.model_path == find_weights()
    assert settings.chat_template is not None and "tool_calls" in settings.chat_template


def test_configured_weights_keep_their_template(weights: Path) -> None:
    assert config(model_path=str(weights)).engine_settings().chat_template is None


def test_configured_template_is_used_for_the_default_model_too(tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("mine")
    assert config(chat_template=str(template)).engine_settings().chat_template == "mine"


@pytest.mark.parametrize(("cores", "alone"), [(1, 1), (2, 1), (8, 7)])
def test_prompts_use_all_cores_and_a_single_generation_all_but_one(
    monkeypatch: pytest.MonkeyPatch, cores: int, alone: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    settings = config().engine_settings()
    assert (settings.threads, settings.prompt_threads) == (alone, cores)


def test_missing_file_is_reported_with_its_setting(weights: Path) -> None:
    with pytest.raises(ConfigError, match=r"model_path: file nowhere\.gguf not found"):
        config(model_path="nowhere.gguf").engine_settings()
    with pytest.raises(ConfigError, match=r"chat_template: file nowhere\.jinja not found"):
        config(model_path=str(weights), chat_template="nowhere.jinja").engine_settings()


def test_weight_updates_with_several_workers_are_rejected(weights: Path) -> None:
    with pytest.raises(ConfigError, match="allow_weight_updates: with several workers"):
        config(model_path=str(weights), allow_weight_updates=True, num_workers=2).engine_settings()


@pytest.mark.parametrize(
    "setting", [{"slots": 0}, {"context": 63}, {"threads": 0}, {"max_restarts": -1}, {"restart_window_s": 0}]
)
def test_out_of_range_number_is_rejected(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        config(**setting)


def test_engine_process_uses_its_settings(
    monkeypatch: pytest.MonkeyPatch, weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "xllamacpp.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("RECORDED", str(tmp_path / "recorded.json"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))

    async def recorded(**settings: Any) -> Any:
        engine = LocalEngine(config(model_path=str(weights), **settings).engine_settings())
        await engine.start()
        await engine.stop(0.0)
        return json.loads((tmp_path / "recorded.json").read_text())

    params = asyncio.run(recorded(slots=3, context=640, threads=2))
    assert params["model"]["path"] == str(weights)
    assert (params["n_parallel"], params["n_ctx"]) == (3, 3 * 640)
    assert (params["cpuparams"]["n_threads"], params["cpuparams_batch"]["n_threads"]) == (2, 2)
    assert "chat_template" not in params  # the one in the weights

    template = tmp_path / "mine.jinja"
    template.write_text("{{ messages }}")
    params = asyncio.run(recorded(chat_template=str(template)))
    assert (params["cpuparams"]["n_threads"], params["cpuparams_batch"]["n_threads"]) == (5, 6)
    assert params["chat_template"] == "{{ messages }}"
