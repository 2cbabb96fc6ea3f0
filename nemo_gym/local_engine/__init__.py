"""A real LLM on this machine: its weights, the engine process, and generations with token ids."""

from nemo_gym.local_engine.engine import EngineError, LocalEngine
from nemo_gym.local_engine.engine_generation import Generation, generate
from nemo_gym.local_engine.engine_settings import EngineSettings
from nemo_gym.local_engine.find_weights import SMOLLM2, find_weights, read_template

__all__ = [
    "SMOLLM2",
    "EngineError",
    "EngineSettings",
    "Generation",
    "LocalEngine",
    "find_weights",
    "generate",
    "read_template",
]
