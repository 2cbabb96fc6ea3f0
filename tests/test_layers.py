"""Imports point down the chain only."""

import ast
import re
from pathlib import Path

import pytest

import nemo_gym
from nemo_gym import _HOMES

ROOT = Path(__file__).resolve().parent.parent

# From low to high. A module may import its own layer's package and anything in the layers before it.
READS_ENVIRONMENT = re.compile(r"os\.environ|getenv")
EDGES = {
    "nemo_gym/cli/collect_rollouts.py",
    "nemo_gym/cli/command.py",
    "nemo_gym/config/load.py",
    "nemo_gym/config/parser.py",
    "nemo_gym/config/roots.py",
    "nemo_gym/launch/pytest_plugin.py",
    "nemo_gym/local_engine/find_weights.py",
    "nemo_gym/prompt.py",
    "nemo_gym/rollout_collection/helper.py",
}
"""Where a command or a published function begins. Only these read the roots and the number of attempts; what
they call is given both."""

LAYERS = [
    {"errors", "machine", "event_loop"},
    {"types", "environment_variables", "python_terms"},
    {"undocumented"},
    {"endpoint_health"},
    {"codec", "activity", "failures", "session_cookies"},
    {"http"},
    {"openai_utils"},
    {"formats", "setting_names"},
    {"text_fit"},
    {"config_types", "path_utils", "terminal", "progress_bar", "extras", "responses_converter"},
    {"config", "journal"},
    {"records", "log_output"},
    {"metrics", "trackers"},
    {"global_config", "reward_profile", "prompt", "head_page"},
    {"client", "local_engine"},
    {"judge"},
    {"servers"},
    {"server_utils", "base_resources_server", "base_responses_api_agent", "base_responses_api_model"},
    {"launch"},
    {"rollout_collection"},
    {"analysis"},
    {"cli"},
]
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}

PUBLISHED = {
    "base_resources_server",
    "base_responses_api_agent",
    "base_responses_api_model",
    "config_types",
    "failures",
    "formats",
    "global_config",
    "judge",
    "local_engine",
    "machine",
    "openai_utils",
    "path_utils",
    "prompt",
    "responses_converter",
    "reward_profile",
    "rollout_collection",
    "server_utils",
}
HEAVY = {"torch", "ray", "wandb", "transformers", "mlflow", "pandas", "openai", "xllamacpp"}


def imported_modules(file: Path) -> set[str]:
    """Absolute names of the modules that a file imports."""
    names: set[str] = set()
    package = file.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names.add(module)
            if module == "nemo_gym":  # its names live in modules, and so count as those
                names |= {f"nemo_gym.{_HOMES.get(alias.name, alias.name)}" for alias in node.names}
    return names


def own_modules(file: Path) -> set[str]:
    """The modules of nemo_gym that a file imports, by their first name below the package."""
    found = {name.split(".")[1] for name in imported_modules(file) if name.startswith("nemo_gym.")}
    return found - set(nemo_gym.__all__)


def module_of(file: Path) -> str:
    return file.relative_to(ROOT / "nemo_gym").parts[0].removesuffix(".py")


GYM_FILES = sorted(
    file
    for file in (ROOT / "nemo_gym").rglob("*.py")
    if file.parent != ROOT / "nemo_gym" or file.stem != "__init__"
)
COMPONENT_FILES = sorted(
    file
    for kind in ("resources_servers", "responses_api_agents", "responses_api_models")
    for file in (ROOT / kind).rglob("*.py")
    if "tests" not in file.parts
)


@pytest.mark.parametrize("file", GYM_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_module_imports_only_from_layers_below(file: Path) -> None:
    module = module_of(file)
    assert module in RANK, f"{module} has no layer; give it one in this test"
    above = {other for other in own_modules(file) - {module} if RANK[other] >= RANK[module]}
    assert not above, f"{file} imports {sorted(above)}, which are not below {module}"


@pytest.mark.parametrize("file", GYM_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_core_never_imports_what_is_an_extra(file: Path) -> None:
    assert not {name.partition(".")[0] for name in imported_modules(file)} & (HEAVY | {"nemo_rl"})


@pytest.mark.parametrize("file", COMPONENT_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_components_see_only_the_published_interface(file: Path) -> None:
    assert own_modules(file) <= PUBLISHED
    mine = ".".join(file.relative_to(ROOT).parts[:2])
    for name in imported_modules(file):
        if name.partition(".")[0] in ("resources_servers", "responses_api_agents", "responses_api_models"):
            assert name.startswith(mine), f"{file} imports another component: {name}"


@pytest.mark.parametrize("file", COMPONENT_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_an_app_stays_short(file: Path) -> None:
    if file.name == "app.py":
        assert len(file.read_text().splitlines()) < 150


@pytest.mark.parametrize("file", COMPONENT_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_components_do_not_read_the_environment(file: Path) -> None:
    assert not READS_ENVIRONMENT.search(file.read_text())


@pytest.mark.parametrize("file", GYM_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_one_package_reads_the_environment_and_one_sends_http(file: Path) -> None:
    text, module = file.read_text(), module_of(file)
    if module != "environment_variables":
        assert not READS_ENVIRONMENT.search(text)
    if module != "environment_variables" and str(file.relative_to(ROOT)) not in EDGES:
        assert not re.search(r"(?<!def )\b(component_roots|extra_roots|max_rollout_attempts)\(", text)
    if module != "http":
        assert not re.search(r"urllib\.request|ClientSession\(", text)
    if module != "cli":
        assert not re.search(r"^\s*print\(", text, re.M)


COLLECTION_LAYERS = [
    {"config", "collection_policy", "outcome"},
    {"recording"},
    {"run_servers"},
    {"planning"},
    {"execution"},
    {"results"},
    {"display"},
    {"endpoint_watch"},
    {"heartbeat"},
    {"collection"},
    {"helper"},
]
"""The inside of `rollout_collection`, from low to high. Its `__init__` only names what is published."""
COLLECTION_RANK = {module: rank for rank, layer in enumerate(COLLECTION_LAYERS) for module in layer}
COLLECTION = "nemo_gym.rollout_collection."
COLLECTION_FILES = [
    file
    for file in GYM_FILES
    if module_of(file) == "rollout_collection" and file != ROOT / "nemo_gym/rollout_collection/__init__.py"
]


@pytest.mark.parametrize("file", COLLECTION_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_phases_of_a_collection_import_only_from_phases_below(file: Path) -> None:
    module = file.relative_to(ROOT / "nemo_gym/rollout_collection").parts[0].removesuffix(".py")
    assert module in COLLECTION_RANK, f"{module} has no layer; give it one in this test"
    names = [name for name in imported_modules(file) if name.startswith(COLLECTION)]
    others = {name.removeprefix(COLLECTION).partition(".")[0] for name in names} - {module}
    above = {other for other in others if COLLECTION_RANK[other] >= COLLECTION_RANK[module]}
    assert not above, f"{file} imports {sorted(above)}, which are not below {module}"


RL_ORDER = [
    "lazy",
    "undocumented",
    "data.interfaces",
    "utils.timer",
    "utils.wandb_metrics",
    "distributed.batched_data_dict",
    "environments.interfaces",
    "models.generation.interfaces",
    "experience.interfaces",
    "experience.ignored_arguments",
    "experience.failures",
    "experience.retry_budgets",
    "experience.message_log",
    "experience.group_metrics",
    "experience.integrity",
    "experience.group",
    "experience.buffer",
    "environments.step_threads",
    "environments.environment_steps",
    "environments.token_capture",
    "environments.gym_results",
    "environments.nemo_gym",
    "experience.native_rollout",
    "experience.gym_dispatch",
    "experience.gym_metrics",
    "experience.gym_rollout",
    "experience.rollout_manager",
    "experience.train_batch",
    "experience.adapters",
    "models.weights",
    "models.generation",
]
"""From low to high; a package includes its modules that are not listed separately."""
REACH_GYM = {
    "lazy",
    "undocumented",
    "utils.wandb_metrics",
    "experience.failures",
    "environments.nemo_gym",
    "experience.adapters",
    "models.weights",
}
"""Where nemo_gym is reached: the handle, failure kinds, weights, probes, and extras that may be missing."""
RL_FILES = sorted(file for file in (ROOT / "nemo_rl").rglob("*.py") if file.stem != "__init__")


def rl_module(name: str) -> str:
    """The entry of RL_ORDER that a module of nemo_rl belongs to."""
    while name and name not in RL_ORDER:
        name = name.rpartition(".")[0]
    return name


@pytest.mark.parametrize("file", RL_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_rollouts_for_trainers_import_only_from_below(file: Path) -> None:
    module = rl_module(".".join(file.relative_to(ROOT / "nemo_rl").with_suffix("").parts))
    assert module, f"{file} has no layer; give it one in this test"
    used = {rl_module(name.removeprefix("nemo_rl.")) for name in imported_modules(file) if "nemo_rl." in name}
    above = {other for other in used - {module, ""} if RL_ORDER.index(other) > RL_ORDER.index(module)}
    assert not above, f"{file} imports {sorted(above)}, which are not below {module}"
    assert module in REACH_GYM or not own_modules(file)
    assert not READS_ENVIRONMENT.search(file.read_text())
