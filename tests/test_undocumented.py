"""Undocumented APIs stay in their modules, and everything works with every probe forced to fail."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PRIVATE_NAMES = {
    "aiohttp": r"ConnectionKey|client_reqrep",
    "fastapi": r"_type_adapter|_embed_body_fields|\.dependant\b|DefaultPlaceholder|fastapi\._",
    "hydra": r"hydra\.(core|_internal|plugins)|antlr4",
    "mlflow": r"mlflow\.(utils|environment_variables|store)",
    "omegaconf": r"omegaconf\._|_get_node|str\(error\.msg\)",
    "pydantic": r"__pydantic_core_schema__|__pydantic_validator__|SchemaValidator|pydantic\._",
    "starlette": r"cookie_parser|user_middleware|lifespan_context|\.raw_headers|Match\.FULL|starlette\._",
    "transformers": r"_attn_implementation|transformers\.(masking_utils|integrations|cache_utils)",
    "uvicorn": r"capture_signals|uvicorn\._",
    "wandb": r"termsetup|\bx_(disable|graphql|save)|wandb\.(sdk|analytics)",
}
SOURCES = sorted(
    file
    for package in (
        "nemo_gym",
        "nemo_rl",
        "resources_servers",
        "responses_api_agents",
        "responses_api_models",
        "examples",
    )
    for file in (ROOT / package).rglob("*.py")
    if not {"tests", "undocumented"} & set(file.parts)
)
FORCED_RUNS = {
    "all": [
        "tests/gym/servers",
        "tests/gym/http/test_calls.py",
        "tests/gym/config",
        "tests/gym/launch/test_embedded.py",
        "tests/gym/openai_utils/test_data.py",
        "resources_servers",
        "responses_api_agents",
        "responses_api_models/openai_model",
    ],
    "pydantic": ["tests/gym/openai_utils/test_data.py", "responses_api_models/openai_model"],
    "transformers": ["tests/rl/models/generation"],
}


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_private_names_of_libraries_are_used_in_their_modules_only(file: Path) -> None:
    text = file.read_text()
    found = {library for library, names in PRIVATE_NAMES.items() if re.search(names, text)}
    assert not found, f"{file} uses undocumented APIs; move the use to the module of the library"


def test_core_schemas_are_built_in_one_module() -> None:
    # pydantic documents how to build them, not what is in them.
    users = [file for file in SOURCES if re.search(r"\bcore_schema\b", file.read_text())]
    assert users == [ROOT / "nemo_gym" / "openai_utils" / "wire_model.py"]


def forced_run(libraries: str) -> str:
    """The output of these tests in a process in which the probes of these libraries fail."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not fast_path", *FORCED_RUNS[libraries]],
        cwd=ROOT,
        env={**os.environ, "NEMO_GYM_FORCE_FALLBACK": libraries},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("libraries", ["all", "pydantic"])
def test_everything_passes_with_the_probes_forced_to_fail(libraries: str) -> None:
    forced_run(libraries)


@pytest.mark.torch
def test_generation_passes_with_the_probe_of_transformers_forced_to_fail() -> None:
    forced_run("transformers")
