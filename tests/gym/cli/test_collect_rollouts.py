"""`ng_collect_rollouts`: messages, servers and parameters used, exit codes."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import pytest

from nemo_gym.rollout_collection import collect_rollouts
from scripts.scripted_endpoint import ScriptedEndpoint
from tests.gym.cli.conftest import Ended, Ng
from tests.support.commands import ROOT, NgRun, free_port
from tests.support.components import write_files
from tests.support.players import play
from tests.support.scripted_agent import MODEL_CONFIG, records_of

WEATHER = "resources_servers/example_single_tool_call/configs/example_single_tool_call.yaml"
TUTORIAL = [
    "+agent_name=example_single_tool_call_simple_agent",
    "+input_jsonl_fpath=resources_servers/example_single_tool_call/data/example.jsonl",
    "+output_jsonl_fpath=results/example_single_tool_call_rollouts.jsonl",
]
"""The arguments as the tutorial prints them."""
OUTPUT = Path("results/example_single_tool_call_rollouts.jsonl")
CONFIG_PATHS = f"+config_paths=[{WEATHER},{MODEL_CONFIG}]"


@dataclass
class World:
    """A model endpoint, and servers started by `ng_run`."""

    endpoint: ScriptedEndpoint
    served: NgRun

    @property
    def to_served(self) -> str:
        return f"+head_server.port={self.served.head.port}"

    @property
    def embedded(self) -> list[str]:
        """Arguments to host the same servers in the command; no head server is running."""
        settings = [f"+{key}={value}" for key, value in self.endpoint.settings.items()]
        return [CONFIG_PATHS, *settings, f"+head_server.port={free_port()}"]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ScriptedEndpoint(play) as endpoint, NgRun([WEATHER, MODEL_CONFIG], endpoint.settings) as served:
        yield World(endpoint, served)


@pytest.fixture(autouse=True)
def no_requests_yet(world: World) -> None:
    world.endpoint.requests.clear()


def params_of_all(world: World) -> list[dict[str, Any]]:
    """The sampling parameters of each request to the endpoint."""
    names = ("temperature", "max_output_tokens", "top_p", "seed")
    return [
        {name: one[name] for name in names if one.get(name) is not None} for one in world.endpoint.requests
    ]


def test_tutorial_with_running_servers_needs_no_config_paths(ng: Ng, world: World) -> None:
    more = ["+limit=5", "+num_repeats=2", "+num_samples_in_parallel=3"]
    done = ng("collect_rollouts", *TUTORIAL, *more, world.to_served)
    assert done.code == 0, done.err
    assert f"served behind http://127.0.0.1:{world.served.head.port}" in done.err
    assert "At most 3 rollouts in flight" in done.err
    assert "Collecting rollouts: 10/10 (100%)" in done.err
    rollouts = records_of(OUTPUT)
    assert sorted((one["_ng_task_index"], one["_ng_rollout_index"]) for one in rollouts) == [
        (task, rollout) for task in range(5) for rollout in range(2)
    ]
    for one in rollouts:
        assert one["reward"] == 1.0 and one["responses_create_params"]["tools"]
        assert [item["type"] for item in one["response"]["output"]] == [
            *("function_call", "function_call_output", "message")
        ]


@pytest.mark.parametrize(
    ("overrides", "sent"),
    [
        ([], {}),
        (["+responses_create_params.temperature=0.0"], {"temperature": 0.0}),
        (
            [
                *("+limit=100", "+num_repeats=3", "+num_samples_in_parallel=5"),
                "+responses_create_params.max_output_tokens=4096",
                "+responses_create_params.temperature=0.7",
                "+responses_create_params.top_p=0.9",
            ],
            {"max_output_tokens": 4096, "temperature": 0.7, "top_p": 0.9},
        ),
        (["+limit=null", "+num_repeats=null", "+num_samples_in_parallel=null"], {}),
    ],
)
def test_parameters_of_the_tutorial_reach_the_model(
    ng: Ng, world: World, overrides: list[str], sent: dict[str, Any]
) -> None:
    done = ng("collect_rollouts", *world.embedded, *TUTORIAL, *overrides)
    assert done.code == 0, done.err
    repeats = 3 if "+num_repeats=3" in overrides else 1
    assert len(records_of(OUTPUT)) == 5 * repeats
    assert params_of_all(world) == [sent] * (10 * repeats)


def test_without_running_servers_the_command_hosts_them_and_reports(ng: Ng, world: World) -> None:
    done = ng("collect_rollouts", *world.embedded, *TUTORIAL, "+limit=2")
    assert done.code == 0, done.err
    assert "embedded" in done.err and "limit 2" in done.err
    name = "results/example_single_tool_call_rollouts"
    assert "Key metrics of example_single_tool_call_simple_agent:" in done.out
    metrics = json.loads(done.out[done.out.index("{") : done.out.index("}") + 1])
    assert metrics["mean/reward"] == 1.0
    assert '{\n  "mean/' in done.out
    assert "Result: 2 planned = 2 succeeded + 0 failed + 0 not run; 0 retried\n" in done.out
    assert done.out.count("Rollouts: ") == 1
    for ending in ("_materialized_inputs.jsonl", ".jsonl", "_aggregate_metrics.json"):
        assert f": {name}{ending}\n" in done.out
        assert Path(name + ending).is_file()
    assert "Failures" not in done.out


def test_published_function_is_the_command(
    ng: Ng, world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [*world.embedded, *TUTORIAL, "+limit=1"]
    monkeypatch.setattr(sys, "argv", ["ng_collect_rollouts", *arguments])
    with pytest.raises(SystemExit) as ended:
        collect_rollouts()
    assert ended.value.code == 0, capfd.readouterr().err
    assert len(records_of(OUTPUT)) == 1


def test_dry_run_shows_the_plan_without_writing_starting_or_calling_anything(
    ng: Ng, world: World, tmp_path: Path
) -> None:
    more = ["+num_repeats=3", "+responses_create_params.max_output_tokens=100", "+dry_run=true"]
    done = ng("collect_rollouts", *world.embedded, *TUTORIAL, *more)
    assert (done.code, done.err) == (0, "")
    assert "5 rows, 15 rollouts" in done.out
    assert "example_single_tool_call_simple_agent: 15 rollouts" in done.out
    sample = json.loads(done.out[done.out.index("{") : done.out.rindex("}") + 1])
    assert (sample["_ng_task_index"], sample["_ng_rollout_index"]) == (0, 0)
    assert sample["agent_ref"] == {"name": "example_single_tool_call_simple_agent"}
    assert "input tokens" in done.out and "1,500 output tokens" in done.out
    assert list(tmp_path.iterdir()) == []
    assert world.endpoint.requests == []


def test_dry_run_refuses_the_same_settings_as_a_run(ng: Ng, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"responses_create_params": {}}\n')
    arguments = ["+input_jsonl_fpath=in.jsonl", "+output_jsonl_fpath=out.jsonl", "+dry_run=true"]
    ng("collect_rollouts", *arguments).assert_complains("in.jsonl", "rows 0 have no agent", "+agent_name=")


@pytest.mark.parametrize("hosting", ["embedded", "served"])
def test_dry_run_reports_an_unknown_agent(ng: Ng, world: World, tmp_path: Path, hosting: str) -> None:
    servers = world.embedded if hosting == "embedded" else [world.to_served]
    arguments = [*servers, *TUTORIAL, "+agent_name=example_single_tool_cal_simple_agent"]
    dry = ng("collect_rollouts", *arguments, "+dry_run=true")
    dry.assert_complains("did you mean example_single_tool_call_simple_agent?")
    assert nothing_was_written(tmp_path)
    assert ng("collect_rollouts", *arguments).err.endswith(dry.err)


def test_dry_run_checks_agents_of_the_configuration_without_running_servers(ng: Ng, world: World) -> None:
    arguments = [*world.embedded, *TUTORIAL, "+hosting=served", "+dry_run=true"]
    assert ng("collect_rollouts", *arguments).code == 0
    ng("collect_rollouts", *arguments, "+agent_name=nobody").assert_complains("no agent 'nobody'")


def test_dry_run_without_any_servers_says_that_agents_were_not_checked(ng: Ng, tmp_path: Path) -> None:
    done = ng("collect_rollouts", *TUTORIAL, f"+head_server.port={free_port()}", "+dry_run=true")
    assert (done.code, done.err) == (0, "")
    assert "5 rows, 5 rollouts" in done.out
    assert "The agents were not checked: no servers are configured" in done.out
    assert list(tmp_path.iterdir()) == []


def test_dry_run_of_a_resumed_run_shows_the_remaining_work(ng: Ng, world: World) -> None:
    assert ng("collect_rollouts", *world.embedded, *TUTORIAL, "+limit=2").code == 0
    more = ["+resume_from_cache=true", "+dry_run=true"]
    done = ng("collect_rollouts", *world.embedded, *TUTORIAL, *more)
    assert (done.code, done.err) == (0, "")
    assert "Resuming: 5 rollouts planned, 2 done, 0 skipped, 3 remaining" in done.out


def test_misspelt_parameter_causes_a_warning_and_is_sent_unchanged(ng: Ng, world: World) -> None:
    override = "+responses_create_params.temprature=0.7"
    done = ng("collect_rollouts", *world.embedded, *TUTORIAL, "+limit=1", override)
    assert done.code == 0
    assert (
        "warning: responses_create_params.temprature is not a parameter of the Responses API "
        "(did you mean temperature?); it is sent unchanged\n"
    ) in done.err
    assert {one["temprature"] for one in world.endpoint.requests} == {0.7}


def nothing_was_written(folder: Path) -> bool:
    return [path for path in folder.rglob("*") if path.is_file()] == []


def test_without_any_servers_one_message_names_both_solutions(ng: Ng, world: World, tmp_path: Path) -> None:
    port = free_port()
    done = ng("collect_rollouts", *TUTORIAL, f"+head_server.port={port}")
    done.assert_complains(f"127.0.0.1:{port}", "ng_run", "+config_paths=[")
    assert nothing_was_written(tmp_path)


def test_served_hosting_without_running_servers_is_an_error(ng: Ng, world: World, tmp_path: Path) -> None:
    done = ng("collect_rollouts", *world.embedded, *TUTORIAL, "+hosting=served")
    done.assert_complains("HeadServerUnreachableError", "ng_run")
    assert done.err.endswith("; or host the servers in this process with +hosting=embedded\n")
    assert nothing_was_written(tmp_path) and world.endpoint.requests == []


def test_served_hosting_without_any_servers_names_both_settings(ng: Ng, world: World) -> None:
    done = ng("collect_rollouts", *TUTORIAL, f"+head_server.port={free_port()}", "+hosting=served")
    assert done.err.endswith(" in this process with +hosting=embedded '+config_paths=[…]'\n")


def test_embedded_hosting_without_servers_is_an_error(ng: Ng, world: World) -> None:
    done = ng("collect_rollouts", *TUTORIAL, world.to_served, "+hosting=embedded")
    done.assert_complains("no servers to host", "+config_paths=[")


@pytest.mark.parametrize("hosting", ["embedded", "served"])
def test_unknown_agent_is_an_error_with_the_closest_name(
    ng: Ng, world: World, tmp_path: Path, hosting: str
) -> None:
    servers = world.embedded if hosting == "embedded" else [world.to_served]
    done = ng("collect_rollouts", *servers, *TUTORIAL, "+agent_name=example_single_tool_cal_simple_agent")
    assert done.code == 2 and done.out == "" and "Traceback" not in done.err
    assert "did you mean example_single_tool_call_simple_agent?" in done.err
    assert nothing_was_written(tmp_path)


def test_servers_that_run_with_another_configuration_are_not_used(
    ng: Ng, world: World, tmp_path: Path
) -> None:
    """Those of the command are hosted instead, unless it asks for running ones."""
    settings = [f"+{key}={value}" for key, value in world.endpoint.settings.items()]
    same = ["collect_rollouts", CONFIG_PATHS, *settings, world.to_served, *TUTORIAL, "+limit=1"]
    done = ng(*same)
    assert done.code == 0 and "served behind" in done.err, done.err
    shutil.rmtree("results")
    done = ng(*same, "+policy_model_name=better", "+hosting=served")
    done.assert_complains("openai_model: was 'scripted', is 'better'", "+hosting=embedded")
    assert nothing_was_written(tmp_path)
    done = ng(*same, "+policy_model_name=better")
    assert done.code == 0, done.err
    assert "The servers are hosted in this process: the servers served behind" in done.err
    assert "openai_model: was 'scripted', is 'better'" in done.err
    shutil.rmtree("results")
    without_files = [one for one in same if one != CONFIG_PATHS]
    done = ng(*without_files, "+policy_model_name=better")
    done.assert_complains("policy_model_name: was 'scripted', is 'better'")
    done = ng(*same, "+policy_model_name=better", "+hosting=embedded")
    assert done.code == 0, done.err
    assert {one["model"] for one in world.endpoint.requests[-2:]} == {"better"}


def test_running_servers_that_lack_one_of_the_configuration_are_not_used(ng: Ng, world: World) -> None:
    calculator = "resources_servers/calculator/configs/calculator.yaml"
    settings = [f"+{key}={value}" for key, value in world.endpoint.settings.items()]
    arguments = [
        f"+config_paths=[{calculator},{MODEL_CONFIG}]",
        *settings,
        "+agent_name=calculator_simple_agent",
        "+input_jsonl_fpath=resources_servers/calculator/data/example.jsonl",
        "+output_jsonl_fpath=results/calculator.jsonl",
        "+limit=1",
        world.to_served,
    ]
    done = ng("collect_rollouts", *arguments, "+hosting=served")
    done.assert_complains("do not include calculator, calculator_simple_agent")
    done = ng("collect_rollouts", *arguments)
    assert "hosted in this process: the servers served behind" in done.err
    assert len(records_of(Path("results/calculator.jsonl"))) == 1


PAGES = {
    "a web page": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
    "no such page": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "JSON": b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\n"a: [1"',
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("page", PAGES)
def test_foreign_program_at_the_address_of_the_head_server_does_not_stop_a_run(
    ng: Ng, world: World, page: str
) -> None:
    with foreign_program(PAGES[page]) as port:
        arguments = [*world.embedded[:-1], f"+head_server.port={port}", *TUTORIAL, "+limit=1"]
        done = ng("collect_rollouts", *arguments)
        assert done.code == 0, done.err
        assert done.err.count(f"the program at http://127.0.0.1:{port} is not a head server of ng_run") == 1
        done = ng("collect_rollouts", *arguments, "+hosting=served")
        done.assert_complains(f"127.0.0.1:{port}", "+hosting=embedded")


@contextmanager
def foreign_program(page: bytes) -> Iterator[int]:
    """A program that sends these bytes to everyone who connects; yields its port."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(page)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_run_can_be_resumed_with_other_hosting(ng: Ng, world: World) -> None:
    assert ng("collect_rollouts", *world.embedded, *TUTORIAL, "+limit=1").code == 0
    done = ng("collect_rollouts", world.to_served, *TUTORIAL, "+limit=2", "+resume_from_cache=true")
    assert done.code == 0, done.err
    assert "2 rollouts planned, 1 done, 1 remaining" in done.err
    done = ng("collect_rollouts", *world.embedded, *TUTORIAL, "+limit=3", "+resume_from_cache=true")
    assert done.code == 0, done.err
    assert len(records_of(OUTPUT)) == 3


def test_changed_inputs_are_refused_with_exit_code_2(ng: Ng, world: World) -> None:
    arguments = [*world.embedded, *TUTORIAL, "+limit=1"]
    assert ng("collect_rollouts", *arguments).code == 0
    changed = [*arguments, "+resume_from_cache=true", "+responses_create_params.temperature=0.5"]
    done = ng("collect_rollouts", *changed)
    assert done.code == 2 and done.out == "" and "Traceback" not in done.err
    assert "ChangedInputsError" in done.err and "temperature: was not set, is 0.5" in done.err
    assert ng("collect_rollouts", *changed, "+allow_changed_inputs=true").code == 0


def test_failed_rollouts_end_with_exit_code_1_their_classes_and_how_to_resume(
    ng: Ng, world: World, tmp_path: Path
) -> None:
    row = {"responses_create_params": {"input": 5}}
    good = (ROOT / "resources_servers/example_single_tool_call/data/example.jsonl").read_text()
    (tmp_path / "mixed.jsonl").write_text(json.dumps(row) + "\n" + good)
    arguments = [*world.embedded, *TUTORIAL, "+input_jsonl_fpath=mixed.jsonl", "+retry_backoff_s=0"]
    done = ng("collect_rollouts", *arguments)
    assert done.code == 1, done.err
    assert "6 planned = 5 succeeded + 1 failed (1 data) + 0 not run; 1 retried" in done.out
    assert "1 x data: " in done.out
    assert "Failures: results/example_single_tool_call_rollouts_failures.jsonl" in done.out
    assert "+resume_from_cache=true" in done.out
    assert ng("collect_rollouts", *arguments, "+resume_from_cache=true").code == 1


def assert_ends_with_error(ended: Ended, *expected: str) -> None:
    """Like `assert_complains`, but other lines may come before the message."""
    assert ended.code == 2 and ended.out == "", ended
    assert "Traceback" not in ended.err
    assert all(text in ended.err for text in expected), ended.err


@pytest.mark.parametrize("name", ["in.jsonl", "./in.jsonl", "in_materialized_inputs.jsonl"])
def test_input_is_never_mistaken_for_a_file_of_the_run(
    ng: Ng, world: World, tmp_path: Path, name: str
) -> None:
    write_files(tmp_path, {name: '{"responses_create_params": {"input": "x"}}\n'})
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    arguments = [*TUTORIAL, f"+input_jsonl_fpath={name}", "+output_jsonl_fpath=in.jsonl"]
    assert_ends_with_error(
        ng("collect_rollouts", *world.embedded, *arguments), "input_jsonl_fpath", "+output_jsonl_fpath="
    )
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("output", ["file/below/out.jsonl", "folder", "/proc/nowhere/out.jsonl"])
def test_unwritable_output_is_reported_as_a_user_error(
    ng: Ng, world: World, tmp_path: Path, output: str
) -> None:
    write_files(tmp_path, {"file": "x", "folder/other": "y"})
    done = ng("collect_rollouts", *world.embedded, *TUTORIAL, f"+output_jsonl_fpath={output}")
    assert_ends_with_error(done, output, "+output_jsonl_fpath=")
    assert world.endpoint.requests == []
