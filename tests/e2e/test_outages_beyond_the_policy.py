"""Outages and refusals of a judge, of replicas, of a server shared by workers, and declared ones."""

import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import pytest
from aiohttp import web

from nemo_gym.path_utils import status_path_for
from nemo_gym.rollout_collection.recording.status_file import read_status
from scripts.scripted_endpoint import Output, ScriptedEndpoint, message
from tests.support.collecting import CALCULATOR, MODEL, Adder, CollectionRuns, failing, no_override, slow
from tests.support.components import write_files

PROCESSES: dict[str, object] = {"executor": "processes", "num_workers": 2}
workers = pytest.mark.parametrize("settings", [{}, PROCESSES], ids=["embedded", "processes"])
QUICK: dict[str, object] = {"max_attempts": 2, "rollout_timeout_s": 3, "call_timeout_s": 2}

JUDGED = """
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.judge import call_judge


class Judged(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    async def verify(self, task: dict, response) -> dict:
        verdict = await call_judge(self.server_client, "judge_model", {"input": response.output_text})
        return {"reward": float(verdict.output_text == "right")}
"""
JUDGED_CONFIG = """
judged:
  resources_servers:
    judged: {{entrypoint: app.py, domain: other}}
judge_model:
  responses_api_models:
    openai_model:
      entrypoint: app.py
      openai_base_url: {url}
      openai_api_key: judges-key
      openai_model: judge
judged_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {{type: resources_servers, name: judged}}
      model_server: {{type: responses_api_models, name: policy_model}}
"""
DECLARING = """
from fastapi import Request
from pathlib import Path

from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent


class Agent(SimpleResponsesAPIAgent):
    config: BaseResponsesAPIAgentConfig

    async def run(self, request: Request) -> dict:
        row = await request.json()
        rollout = row | {"reward": 1.0, "response": {"output": []}}
        if row["_ng_task_index"] in map(int, Path("refused").read_text().split()):
            rollout["_ng_failure_class"] = "configuration"
            rollout["_ng_failure_judge_error"] = "the sandbox has no licence"
        return rollout
"""
DECLARING_CONFIG = "declaring: {responses_api_agents: {declaring: {entrypoint: app.py}}}\n"


def waiting(runs: CollectionRuns) -> dict[str, int]:
    return (read_status(status_path_for(runs.output)) or {}).get("waiting", {})


class Judge:
    """The script of a judge; `answer` is replaced by tests."""

    def __init__(self) -> None:
        self.answer: Callable[[], Output] = lambda: [message("right")]

    async def __call__(self, request: dict[str, Any]) -> Output:
        return self.answer()


def wrong_key() -> web.Response:
    error = {"message": "Incorrect API key provided", "code": "invalid_api_key"}
    return web.json_response({"error": error}, status=401)


def judged_runs(runs: CollectionRuns, judge: ScriptedEndpoint) -> CollectionRuns:
    config = JUDGED_CONFIG.format(url=judge.base_url)
    write_files(runs.folder / "resources_servers/judged", {"app.py": JUDGED, "configs/judged.yaml": config})
    paths = ("resources_servers/judged/configs/judged.yaml", MODEL)
    return CollectionRuns(
        runs.folder, runs.endpoint, runs.adder, 12, config_paths=paths, agent="judged_agent"
    )


@workers
def test_wrong_key_of_a_judge_ends_the_run_at_once(runs: CollectionRuns, settings: dict[str, object]) -> None:
    judge = Judge()
    judge.answer = wrong_key
    with ScriptedEndpoint(judge) as endpoint:
        runs = judged_runs(runs, endpoint)
        collector = runs.start(**settings)
        assert collector.wait(60) == 2, collector.output
        url = f"{endpoint.base_url}/responses"
        assert f"judge_model refuses every call: {url} responded with 401: Incorrect API key provided." in (
            collector.output
        )
        assert "To fix it, check the key of judge_model" in collector.output
        assert "policy_api_key" not in collector.output
        assert not runs.failures and not runs.recorded()
        judge.answer = lambda: [message("right")]
        runs.finish(**settings)


@workers
def test_judge_that_is_unavailable_is_waited_for(runs: CollectionRuns, settings: dict[str, object]) -> None:
    judge = Judge()
    judge.answer = lambda: failing(503)
    with ScriptedEndpoint(judge) as endpoint:
        runs = judged_runs(runs, endpoint)
        collector = runs.start(**QUICK, **settings)
        collector.wait_until(lambda: "judge_model: status 503" in collector.output)
        assert waiting(runs) == {"503": 12}
        judge.answer = lambda: [message("right")]
        assert collector.wait() == 0, collector.output
    runs.check_complete()
    assert not runs.failures


def chat_script(adder: Adder) -> Callable[[dict[str, Any]], Awaitable[Output]]:
    async def respond(request: dict[str, Any]) -> Output:
        output = await adder({"input": request["messages"]})
        if isinstance(output, web.Response):
            return output
        said = {"role": "assistant", "content": output[0]["content"][0]["text"]}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        choices = [{"index": 0, "message": said, "finish_reason": "stop"}]
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}
            | {"usage": usage}
        )

    return respond


@workers
def test_replicas_that_are_all_down_are_waited_for(runs: CollectionRuns, settings: dict[str, object]) -> None:
    with ExitStack() as stack:
        replicas = [stack.enter_context(ScriptedEndpoint(chat_script(runs.adder))) for _ in range(3)]
        urls = ", ".join(replica.base_url for replica in replicas)
        runs.folder.joinpath("replicas.yaml").write_text(
            "policy_model: {responses_api_models: {vllm_model: {entrypoint: app.py, "
            f"base_url: [{urls}], api_key: none, model: m}}}}}}\n"
        )
        paths = (CALCULATOR, "replicas.yaml")
        runs = CollectionRuns(runs.folder, runs.endpoint, runs.adder, 12, config_paths=paths)
        for replica in replicas:
            replica.go_down()
        collector = runs.start(**QUICK, **settings)
        collector.wait_until(lambda: "policy_model: connection refused" in collector.output)
        collector.wait_until(lambda: "waiting: connection refused ×12" in collector.output)
        replicas[1].come_back()  # one of them is enough
        assert collector.wait() == 0, collector.output
    runs.check_complete()
    assert not runs.failures and b"_ng_attempt_index" not in runs.output.read_bytes()


def test_outage_behind_a_server_that_workers_share_is_waited_for(runs: CollectionRuns) -> None:
    async def fail_after_four(number: int, times: int) -> Output | None:
        return failing(503) if number >= 4 else None

    runs.adder.override = fail_after_four
    limit = "++policy_model.responses_api_models.openai_model.max_concurrent_requests"
    settings: dict[str, object] = {limit.removeprefix("+"): 3, **PROCESSES, **QUICK, "max_attempts": 4}
    collector = runs.start(**settings)
    collector.wait_until(lambda: "policy_model: status 503" in collector.output)
    collector.wait_until(lambda: len(runs.recorded()) == 4)
    runs.adder.override = no_override
    assert collector.wait() == 0, collector.output
    runs.check_complete()
    assert not runs.failures and collector.output.count("policy_model: status 503") == 1


def redirect() -> web.Response:
    return web.Response(status=302, headers={"Location": "http://127.0.0.1:9/elsewhere?key=secret"})


@workers
def test_redirect_ends_the_run_at_once(runs: CollectionRuns, settings: dict[str, object]) -> None:
    async def moved(number: int, times: int) -> Output | None:
        return redirect()

    runs.adder.override = moved
    collector = runs.start(**settings)
    assert collector.wait(60) == 2, collector.output
    assert (
        f"policy_model refuses every call: {runs.endpoint.base_url}/responses responded with 302, a redirect "
        "to http://127.0.0.1:9/elsewhere. To fix it, give the final address of policy_model (policy_base_url)"
    ) in collector.output
    assert "secret" not in collector.output and not runs.failures
    runs.adder.override = no_override
    runs.finish(**settings)


@workers
def test_redirect_after_successes_is_an_outage(runs: CollectionRuns, settings: dict[str, object]) -> None:
    async def moved(number: int, times: int) -> Output | None:
        await slow(number, times)
        return redirect() if number >= 4 else None

    runs.adder.override = moved
    collector = runs.start(num_samples_in_parallel=4, **QUICK, **settings)
    # "refused", if a worker has had no success yet.
    reported = re.compile(r"policy_model: (status 302|refused|status 302 and refused) at ")
    collector.wait_until(lambda: reported.search(collector.output) is not None)
    runs.adder.override = no_override
    assert collector.wait() == 0, collector.output
    runs.check_complete()
    assert not runs.failures


def declaring_runs(runs: CollectionRuns) -> CollectionRuns:
    files = {"app.py": DECLARING, "configs/declaring.yaml": DECLARING_CONFIG}
    write_files(runs.folder / "responses_api_agents/declaring", files)
    paths = ("responses_api_agents/declaring/configs/declaring.yaml", MODEL)
    return CollectionRuns(runs.folder, runs.endpoint, runs.adder, 12, config_paths=paths, agent="declaring")


@workers
def test_agent_that_declares_a_wrong_configuration_ends_the_run(
    runs: CollectionRuns, settings: dict[str, object]
) -> None:
    runs = declaring_runs(runs)
    refused = runs.folder / "refused"
    refused.write_text(" ".join(map(str, range(12))))
    collector = runs.start(**settings)
    assert collector.wait(60) == 2, collector.output
    assert (
        "declaring declared this rollout failed (configuration): the sandbox has no licence"
        in collector.output
    )
    assert not runs.failures and not runs.recorded()
    refused.write_text("")
    runs.finish(**settings)


@workers
def test_configuration_declared_after_successes_is_an_outage_with_a_limit(
    runs: CollectionRuns, settings: dict[str, object]
) -> None:
    runs = declaring_runs(runs)
    refused = runs.folder / "refused"
    refused.write_text("4 5 6 7 8 9 10 11")
    collector = runs.start(num_samples_in_parallel=2, outage_timeout_s=4, **settings)
    assert collector.wait(60) == 1, collector.output
    shown = "the sandbox has no licence, retrying; rollouts wait, and the run stops after 4 s"
    assert collector.output.count(shown) == 1, collector.output
    assert "Stopped early: " in collector.output and "and no success for 4 s" in collector.output
    assert not runs.failures and len(runs.recorded()) == 4
    refused.write_text("")
    runs.finish(**settings)


def test_row_whose_agent_declares_a_wrong_configuration_while_others_succeed_is_a_data_failure(
    runs: CollectionRuns,
) -> None:
    runs = declaring_runs(runs)
    (runs.folder / "refused").write_text("3")
    collector = runs.start(num_samples_in_parallel=2)
    assert collector.wait(60) == 1, collector.output
    assert runs.failure_of(3)["_ng_failure_class"] == "data"
    assert runs.check_ledger()["succeeded"] == 11
