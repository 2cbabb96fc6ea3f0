"""The documentation names files, links and layers that exist."""

import re
from pathlib import Path

import pytest

from nemo_gym.config import max_rollout_attempts
from nemo_gym.http.size_limits import KB, MB, SizeLimits
from nemo_gym.rollout_collection import RolloutCollectionConfig
from nemo_gym.rollout_collection.config import DEFAULT_PARALLEL
from nemo_gym.servers.sessions import SessionPolicy
from responses_api_agents.simple_agent.app import SimpleAgentConfig
from tests.test_layers import COLLECTION_LAYERS, LAYERS

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURE = ROOT / "docs/architecture.md"
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "examples/*/README.md", "res*/*/README.md")
    for page in ROOT.glob(pattern)
)


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_readme_lists_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"(docs/{page.name})" not in readme] == []


def test_architecture_names_files_that_exist() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", ARCHITECTURE.read_text()))
    files = [
        f"/{file.relative_to(ROOT)}"
        for folder in ("nemo_*", "res*", "tests", "scripts", "bench")
        for top in ROOT.glob(folder)
        for file in top.rglob("*.py")
    ]
    assert {name for name in named if not any(file.endswith(f"/{name}") for file in files)} == set()


def test_limits_name_tests_and_defaults_that_exist() -> None:
    text = (ROOT / "docs/limits_and_guarantees.md").read_text()
    promised = text.partition("## Limits")[0]
    tests = re.findall(r"`((?:e2e|gym|rl)/[\w/.]+|test_\w+\.py)`", promised)
    assert len(tests) > 20
    assert [name for name in tests if not (ROOT / "tests" / name).exists()] == []
    size = SizeLimits()
    defaults = {
        "max_response_mb": size.response_bytes // MB,
        "max_response_header_kb": size.header_bytes // KB,
        "max_request_mb": size.request_bytes // MB,
        "max_aggregate_metrics_mb": size.metrics_bytes // MB,
        "num_samples_in_parallel": DEFAULT_PARALLEL,
        "max_steps": SimpleAgentConfig.model_fields["max_steps"].default,
        "none": SessionPolicy().capacity,
    }
    rows = re.findall(r"^\| [^|]+ \| `?(\w+)`?[^|]* \| ([\d,]+) \|$", text, re.MULTILINE)
    assert len(rows) == 13
    for name, documented in rows:
        if name == "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS":
            default = max_rollout_attempts()
        else:
            field = RolloutCollectionConfig.model_fields.get(name)
            default = defaults.get(name, field and field.default)
        assert float(documented.replace(",", "")) == default, name


def documented_layers(heading: str) -> list[set[str]]:
    """The first column of the table with this heading, from bottom to top."""
    table = ARCHITECTURE.read_text().partition(f"| {heading} |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [set(re.findall(r"`(\w+)`", row)) for row in reversed(rows)]


def test_architecture_lists_the_layers_that_are_enforced() -> None:
    assert documented_layers("modules of `nemo_gym`") == LAYERS
    assert documented_layers("module") == COLLECTION_LAYERS
