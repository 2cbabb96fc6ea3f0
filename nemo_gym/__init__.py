"""Rollout collection for reinforcement learning and evaluation of LLM agents.

Importing this package only defines names; each loads what it needs when it is first used.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    WORKING_DIR: Path
    CACHE_DIR: Path
    RESULTS_DIR: Path
    from nemo_gym.client import ServerClient
    from nemo_gym.launch import open_servers

__version__ = "0.1.0"

PARENT_DIR = Path(__file__).resolve().parent.parent
"""The checkout, or the folder the package is installed in: the last place components are looked for."""
ROOT_DIR = PARENT_DIR

_HOMES = {
    "BaseResourcesServerConfig": "base_resources_server",
    "BaseRunRequest": "base_resources_server",
    "BaseSeedSessionRequest": "base_resources_server",
    "BaseSeedSessionResponse": "base_resources_server",
    "BaseVerifyRequest": "base_resources_server",
    "BaseVerifyResponse": "base_resources_server",
    "SimpleResourcesServer": "base_resources_server",
    "BaseResponsesAPIAgentConfig": "base_responses_api_agent",
    "SimpleResponsesAPIAgent": "base_responses_api_agent",
    "BaseResponsesAPIModelConfig": "base_responses_api_model",
    "SimpleResponsesAPIModel": "base_responses_api_model",
    "NeMoGymAsyncOpenAI": "openai_utils",
    "NeMoGymResponse": "openai_utils",
    "NeMoGymResponseCreateParamsNonStreaming": "openai_utils",
    "ServerClient": "client",
    "get_global_config_dict": "global_config",
    "open_servers": "launch",
}

__all__ = [
    "CACHE_DIR",
    "PARENT_DIR",
    "RESULTS_DIR",
    "ROOT_DIR",
    "WORKING_DIR",
    "ServerClient",
    "__version__",
    "open_servers",
]


_FOLDERS = {"WORKING_DIR": "", "CACHE_DIR": "cache", "RESULTS_DIR": "results"}
"""Below the folder that a run is started in."""


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return Path.cwd() / _FOLDERS[name]
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_FOLDERS})
