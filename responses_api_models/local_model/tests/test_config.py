"""Every setting reaches the engine."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.local_engine import LocalEngine, find_weights
from responses_api_models.local_model.config import LocalModelConfig

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
        with open(os.environ["TOLD"], "w") as file:
            json.dump(params, file, default=vars)
"""
"""What the engine's process loads instead of llama.cpp: it only writes down what it is told."""


def config(**settings: Any) -> LocalModelConfig:
    return LocalModelConfig.model_validate({**PLACE, **settings})


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "mine.gguf"
    file.touch()
    return file


def test_what_is_set_is_what_the_engine_gets(weights: Path, tmp_path: Path) -> None:
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


def test_model_in_the_box_gets_a_template_that_knows_tools() -> None:
    settings = config().engine_settings()
    assert settings.model_path == find_weights()
    assert settings.chat_template is not None and "tool_calls" in settings.chat_template


def test_weights_of_ones_own_keep_their_template(weights: Path) -> None:
    assert config(model_path=str(weights)).engine_settings().chat_template is None


def test_template_of_ones_own_is_used_for_the_model_in_the_box_too(tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("mine")
    assert config(chat_template=str(template)).engine_settings().chat_template == "mine"


@pytest.mark.parametrize(("cores", "alone"), [(1, 1), (2, 1), (8, 7)])
def test_all_cores_compute_prompts_and_one_is_spared_by_a_lone_generation(
    monkeypatch: pytest.MonkeyPatch, cores: int, alone: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    settings = config().engine_settings()
    assert (settings.threads, settings.prompt_threads) == (alone, cores)


def test_file_that_is_not_there_is_named_with_its_setting(weights: Path) -> None:
    with pytest.raises(ConfigError, match=r"model_path: there is no file nowhere\.gguf"):
        config(model_path="nowhere.gguf").engine_settings()
    with pytest.raises(ConfigError, match=r"chat_template: there is no file nowhere\.jinja"):
        config(model_path=str(weights), chat_template="nowhere.jinja").engine_settings()


def test_weights_that_only_one_of_several_workers_would_get_are_refused(weights: Path) -> None:
    with pytest.raises(ConfigError, match="allow_weight_updates: each of several workers"):
        config(model_path=str(weights), allow_weight_updates=True, num_workers=2).engine_settings()


@pytest.mark.parametrize(
    "setting", [{"slots": 0}, {"context": 63}, {"threads": 0}, {"max_restarts": -1}, {"restart_window_s": 0}]
)
def test_number_that_makes_no_sense_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        config(**setting)


def test_engines_process_computes_as_it_is_told(
    monkeypatch: pytest.MonkeyPatch, weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "xllamacpp.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("TOLD", str(tmp_path / "told.json"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))

    async def told(**settings: Any) -> Any:
        engine = LocalEngine(config(model_path=str(weights), **settings).engine_settings())
        await engine.start()
        await engine.stop(0.0)
        return json.loads((tmp_path / "told.json").read_text())

    given = asyncio.run(told(slots=3, context=640, threads=2))
    assert given["model"]["path"] == str(weights)
    assert (given["n_parallel"], given["n_ctx"]) == (3, 3 * 640)
    assert (given["cpuparams"]["n_threads"], given["cpuparams_batch"]["n_threads"]) == (2, 2)
    assert "chat_template" not in given  # the one in the weights

    template = tmp_path / "mine.jinja"
    template.write_text("{{ messages }}")
    given = asyncio.run(told(chat_template=str(template)))
    assert (given["cpuparams"]["n_threads"], given["cpuparams_batch"]["n_threads"]) == (5, 6)
    assert given["chat_template"] == "{{ messages }}"
