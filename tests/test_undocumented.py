"""Undocumented APIs stay in their modules, and everything works with every probe forced to fail."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent

PRIVATE_NAMES = {
    "aiohttp": r"ConnectionKey|client_reqrep",
    "fastapi": r"_type_adapter|_embed_body_fields|\.dependant\b|DefaultPlaceholder|fastapi\.(_|utils)",
    "hydra": r"hydra\.(core|_internal|plugins)|antlr4",
    "mlflow": r"mlflow\.(utils|environment_variables|store)",
    "omegaconf": r"omegaconf\._|_get_node",
    "pydantic": r"__pydantic_core_schema__|__pydantic_validator__|SchemaValidator|pydantic\._",
    "starlette": r"cookie_parser|user_middleware|lifespan_context|Match\.FULL|starlette\._",
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
        "tests/gym/servers/test_direct_route.py",
        "tests/gym/servers/test_sessions.py",
        "tests/gym/servers/test_close_session.py",
        "tests/gym/servers/test_run_sessions.py",
        "tests/gym/servers/test_failure_responses.py",
        "tests/gym/http/test_call.py",
        "tests/gym/config/test_overrides.py",
        "tests/gym/config/test_resolve.py",
        "tests/gym/rollout_collection/test_helper.py",
        "tests/gym/trackers/test_wandb.py::test_api_key_is_not_written_to_any_file",
        "tests/gym/trackers/test_wandb.py::test_primitive_metrics_are_one_step_and_named_by_agent",
        "tests/gym/trackers/test_wandb.py::test_active_run_gets_the_data_and_stays_open",
        "tests/test_failure_kinds.py",
        "tests/e2e/test_transports.py",
        "tests/e2e/test_ng_run.py::test_sessions_stay_with_their_worker_and_both_workers_get_some",
        "resources_servers/example_session_state_mgmt",
        "responses_api_agents",
    ],
    "pydantic": [
        "tests/gym/openai_utils/test_wire_data.py",
        "responses_api_models/openai_model/tests/test_transports.py",
    ],
    "transformers": [
        "tests/rl/models/generation/test_slot_decoder.py",
        *(
            f"tests/rl/models/generation/test_transformers_generation.py::{test}"
            for test in (
                "test_logprobs_are_those_of_one_pass_over_whole_conversations[llama]",
                "test_logprobs_are_those_of_one_pass_over_whole_conversations[gpt2]",
                "test_models_of_other_families_give_correct_logprobs",
                "test_concurrent_coroutines_get_the_logprobs_of_one_pass_over_each_sequence",
                "test_same_seed_and_prompt_give_the_same_tokens_alone_and_among_others",
                "test_finish_generation_frees_the_cache_and_later_requests_work",
            )
        ),
    ],
}
"""Tests that use the fallbacks, by the libraries whose probes fail.

pydantic has its own run: if the probe of FastAPI fails too, no plain data is validated. transformers has
its own run because it needs torch: the tests whose result depends on where keys and values are stored.
"""


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_private_names_of_libraries_are_used_in_their_modules_only(file: Path) -> None:
    text = file.read_text()
    found = {library for library, names in PRIVATE_NAMES.items() if re.search(names, text)}
    assert not found, f"{file} uses undocumented APIs; move the use to the module of the library"


def test_each_library_has_an_upper_bound_that_the_pinned_version_satisfies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [
        *project["dependencies"],
        *(text for extra in project["optional-dependencies"].values() for text in extra),
    ]
    needed = {requirement.name: requirement for requirement in map(Requirement, texts)}
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    for library in PRIVATE_NAMES:
        name = {"hydra": "hydra-core", "mlflow": "mlflow-skinny"}.get(library, library)
        assert any(part.operator == "<" for part in needed[name].specifier), f"{name} has no upper bound"
        assert pinned[name] in needed[name].specifier


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
def test_runs_servers_and_trackers_pass_with_the_probes_forced_to_fail(libraries: str) -> None:
    forced_run(libraries)


@pytest.mark.torch
def test_generation_passes_with_the_probe_of_transformers_forced_to_fail() -> None:
    forced_run("transformers")
