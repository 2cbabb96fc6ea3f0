"""Environments as users publish them: `verify(task, response)`, files named relative to their folder."""

import json

import pytest

from tests.support.collecting import MODEL, CollectionRuns
from tests.support.commands import NgRun, run_command
from tests.support.components import write_files

APP = """
from pathlib import Path
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer


class Config(BaseResourcesServerConfig):
    words: str
    lists: dict[str, list[Path]]
    by_default: str = "words/default.txt"


class Server(SimpleResourcesServer):
    config: Config

    def setup_webserver(self):
        with open(self.config.by_default) as file:
            assert file.read() == "default"
        return super().setup_webserver()

    def verify(self, task, response):
        correct = task["expected_answer"] in response.output_text
        words = [Path(self.config.words).read_text(), *map(Path.read_text, self.config.lists["all"])]
        return {"reward": 0.85, "accuracy": float(correct), "words": words}
"""
CONFIG = """
published:
  resources_servers:
    published:
      entrypoint: app.py
      domain: other
      words: words/own.txt
      lists: {all: [words/own.txt, shared/words.txt]}
published_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: published}
      model_server: {type: responses_api_models, name: policy_model}
"""
FILES = {
    "app.py": APP,
    "configs/published.yaml": CONFIG,
    "words/own.txt": "own",
    "words/default.txt": "default",
    "shared/words.txt": "hidden by the working directory",
}


def published(runs: CollectionRuns, app: str = APP) -> CollectionRuns:
    """Rollouts of an environment in a folder other than the working directory of its servers."""
    write_files(runs.folder / "resources_servers/published", {**FILES, "app.py": app})
    write_files(runs.folder, {"shared/words.txt": "shared"})
    paths = ("resources_servers/published/configs/published.yaml", MODEL)
    return CollectionRuns(
        runs.folder, runs.endpoint, runs.adder, 3, config_paths=paths, agent="published_agent"
    )


@pytest.mark.parametrize("hosting", ["embedded", "served", "processes"])
def test_published_environment_is_scored_and_finds_its_files(runs: CollectionRuns, hosting: str) -> None:
    runs = published(runs)
    if hosting == "served":
        with NgRun(list(runs.config_paths), runs.endpoint.settings, cwd=runs.folder) as served:
            collector = runs.start(**{"hosting": "served", "head_server.port": served.head.port})
            assert collector.wait() == 0, collector.output
    else:
        collector = runs.start(executor="local" if hosting == "embedded" else hosting)
        assert collector.wait() == 0, collector.output
    rollouts = [json.loads(line) for line in runs.output.read_text().splitlines()]
    assert len(rollouts) == 3
    for rollout in rollouts:
        assert (rollout["reward"], rollout["accuracy"]) == (0.85, 1.0)
        assert rollout["words"] == ["own", "own", "shared"]
        assert "What is" in rollout["responses_create_params"]["input"][0]["content"]
        assert rollout["response"]["output"][0]["type"] == "message" and rollout["expected_answer"]


def test_override_of_a_file_is_found_in_the_components_folder_too(runs: CollectionRuns) -> None:
    runs = published(runs)
    write_files(runs.folder / "resources_servers/published", {"words/other.txt": "other"})
    collector = runs.start(**{"published.resources_servers.published.words": "words/other.txt"})
    assert collector.wait() == 0, collector.output
    assert json.loads(runs.output.read_text().splitlines()[0])["words"][0] == "other"


RELATIVE = APP.replace("Path(self.config.words).read_text()", 'open("words/own.txt").read()')


def test_relative_path_in_the_code_of_a_served_environment_is_that_of_its_folder(
    runs: CollectionRuns,
) -> None:
    runs = published(runs, RELATIVE)
    with NgRun(list(runs.config_paths), runs.endpoint.settings, cwd=runs.folder) as served:
        collector = runs.start(**{"hosting": "served", "head_server.port": served.head.port})
        assert collector.wait() == 0, collector.output


def test_missing_file_of_an_embedded_environment_is_reported_with_both_places(runs: CollectionRuns) -> None:
    runs = published(runs, RELATIVE)
    collector = runs.start(max_attempts=1)
    assert collector.wait() == 1, collector.output
    message = runs.failures[0]["error_message"]
    there = runs.folder / "resources_servers/published/words/own.txt"
    assert f"was looked for in the working directory, {runs.folder}" in message
    assert f"in the folder of the component it would be {there}, which exists" in message
    assert "FileNotFoundError" in message


def test_file_that_is_missing_at_set_up_is_reported_with_both_places(runs: CollectionRuns) -> None:
    runs = published(runs, APP.replace("self.config.by_default", '"nowhere.txt"'))
    files = [f"+config_paths=[{','.join(runs.config_paths)}]", *runs.arguments()[1:]]
    done = run_command("ng_collect_rollouts", *files, cwd=runs.folder)
    assert done.returncode == 2
    assert "nowhere.txt was looked for in the working directory" in done.stderr
    assert "which does not exist either" in done.stderr
