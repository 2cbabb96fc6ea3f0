"""The Python API: results of `RolloutCollectionHelper` and the files it writes."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import nemo_gym
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError, HeadServerUnreachableError, InputError
from nemo_gym.http import ServerCallError
from nemo_gym.path_utils import aggregate_metrics_path_for, manifest_path_for
from nemo_gym.rollout_collection import RolloutCollectionHelper, _rollout_request_debug_summary
from nemo_gym.server_utils import ServerClient
from scripts.scripted_endpoint import Item, ScriptedEndpoint, message, user_text
from tests.support.commands import free_port
from tests.support.scripted_agent import MODEL_CONFIG, Playground, keys_of, records_of, row

Capture = pytest.CaptureFixture[str]
Row = dict[str, Any]

CALCULATOR = ["resources_servers/calculator/configs/calculator.yaml", MODEL_CONFIG]
CALCULATOR_AGENT = "calculator_simple_agent"


def test_rollouts_are_a_sequence_sorted_by_key(playground: Playground) -> None:
    rollouts = playground.collect(num_repeats=4)
    assert isinstance(rollouts, Sequence)
    whole = list(rollouts)
    assert len(rollouts) == len(whole) == 12
    assert keys_of(whole) == [f"{task}:{rollout}" for task in range(3) for rollout in range(4)]
    assert rollouts == whole and whole == rollouts and list(rollouts) == whole
    assert rollouts != whole[1:] and rollouts != []
    assert rollouts[0] == whole[0] and rollouts[-1] == whole[-1]
    assert rollouts[2:5] == whole[2:5] and rollouts[::-3] == whole[::-3] and rollouts[20:] == []
    assert whole[3] in rollouts and rollouts.index(whole[3]) == 3
    assert sorted(map(json.dumps, whole)) == sorted(map(json.dumps, records_of(playground.output)))
    for index in (12, -13):
        with pytest.raises(IndexError):
            rollouts[index]


def test_rollouts_can_be_read_from_another_working_directory(
    playground: Playground, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rollouts = playground.collect()
    monkeypatch.chdir(tmp_path.parent)
    assert rollouts[0]["reward"] == 1.0


def test_agent_gets_exactly_the_materialized_input(playground: Playground) -> None:
    playground.write_input(row("a", n=2**70, words="é \ud83d", z=1.0), row("b"))
    playground.collect(num_repeats=2, num_repeats_add_seed=True)
    assert sorted(playground.bodies()) == sorted(playground.materialized.read_bytes().splitlines())


def test_run_without_successes_returns_an_empty_sequence(playground: Playground) -> None:
    for task in range(3):
        playground.set_response(f"{task}:0", "[]")
    rollouts = playground.collect()
    assert rollouts == [] and len(rollouts) == 0 and list(rollouts) == []
    assert "rollouts_aggregate_metrics.json" not in playground.names()


def test_rollout_is_the_response_with_the_key_and_the_agent_of_the_row(playground: Playground) -> None:
    playground.write_input(row("a", expected_answer="x", agent_ref={"name": "scripted", "more": 1}))
    [rollout] = playground.collect()
    assert rollout == {
        "responses_create_params": {"input": "a"},
        "expected_answer": "x",
        "agent_ref": {"name": "scripted", "more": 1},
        "_ng_task_index": 0,
        "_ng_rollout_index": 0,
        "reward": 1.0,
        "response": {"output": []},
    }


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"_ng_task_index": 99, "_ng_rollout_index": 99, "agent_ref": {"name": "other"}},
        {"_ng_task_index": 1.0, "_ng_rollout_index": False, "agent_ref": {"name": "scripted"}},
        {"_ng_task_index": "1", "_ng_rollout_index": None, "agent_ref": None},
    ],
)
def test_rollout_has_the_key_of_its_row_whatever_the_agent_returns(
    playground: Playground, extra: Row
) -> None:
    playground.set_response("1:0", json.dumps({"reward": 0.5, "big": 2**70, **extra}))
    playground.collect()
    [rollout] = [one for one in records_of(playground.output) if one["reward"] == 0.5]
    key = (rollout["_ng_task_index"], rollout["_ng_rollout_index"])
    assert key == (1, 0) and [type(part) for part in key] == [int, int]
    assert rollout["agent_ref"] == {"name": "scripted"}
    assert rollout["big"] == 2**70


INDICES = '"_ng_task_index": 1, "_ng_rollout_index": 0, "agent_ref": {"name": "scripted"}'


@pytest.mark.parametrize(
    "body",
    [
        '{\n  "reward": 0.5,\n  ' + INDICES + "\n}\n",
        '{\r\n"reward": 0.5,\r\n' + INDICES + "}\r\n",
        '{"reward": 0.5,\r' + INDICES + "}",
        '\ufeff{"reward": 0.5, ' + INDICES + "}",
        '{"reward": 0.5, "other": NaN, "more": [Infinity], ' + INDICES + "}",
        '{"reward": 0.5, "text": "\\ud83d", ' + INDICES + "}",
    ],
)
def test_every_rollout_is_one_line_of_strict_json(playground: Playground, body: str) -> None:
    playground.set_response("1:0", body)
    assert len(playground.collect()) == 3
    with playground.output.open(encoding="utf-8") as file:  # text mode splits at every kind of line end
        lines = list(file)
    assert len(lines) == 3
    rollouts = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert {one["reward"] for one in rollouts} == {0.5, 1.0}
    assert len(playground.collect(resume_from_cache=True)) == 3


@pytest.mark.parametrize(
    "body",
    [
        "[1]",
        "null",
        '"text"',
        '{"response": {}}',
        '{"reward": null}',
        '{"reward": "1.0"}',
        '{"reward": NaN}',
        '{"reward": Infinity}',
        '{"reward": [1]}',
    ],
)
def test_response_that_is_not_a_scored_rollout_is_a_data_failure(playground: Playground, body: str) -> None:
    playground.set_response("1:0", body)
    assert keys_of(playground.collect()) == ["0:0", "2:0"]
    [failure] = records_of(playground.failures)
    assert failure["_ng_failure_class"] == "data"
    assert len(failure["error_message"]) <= 2000


@pytest.mark.parametrize("body", ["<html>no upstream</html>", '{"reward": 1.0, "resp', "[" * 100_000])
def test_response_that_is_not_json_blames_no_task(playground: Playground, body: str) -> None:
    """It was cut off, or it is a page of a gateway: the same in `nemo_rl` and for every other call."""
    playground.set_response("1:0", body)
    assert keys_of(playground.collect()) == ["0:0", "2:0"]
    [failure] = records_of(playground.failures)
    assert (failure["_ng_failure_class"], failure["data_attempts"]) == ("infrastructure", 0)
    assert len(failure["error_message"]) <= 2000


def test_failure_has_a_message_and_no_numbers_to_average(playground: Playground) -> None:
    playground.set_response("1:0", "the agent is down", status=503)
    playground.collect()
    [failure] = records_of(playground.failures)
    assert failure.pop("time").endswith("Z")
    assert "the agent is down" in failure.pop("error_message")
    assert failure == {
        "_ng_task_index": 1,
        "_ng_rollout_index": 0,
        "agent_ref": {"name": "scripted"},
        "_ng_failure_class": "infrastructure",
        "error_type": "ServerCallError",
        "http_status": 503,
        "attempts": 2,
        "data_attempts": 0,
    }


def test_failure_declared_by_the_agent_is_recorded_and_not_averaged(
    playground: Playground,
) -> None:
    playground.set_response("1:0", reward=-100.0, _ng_failure_class="bad_weather")
    assert keys_of(playground.collect()) == ["0:0", "2:0"]
    assert playground.played() == ["0:0", "1:0", "2:0"]  # a declared failure is not retried
    [failure] = records_of(playground.failures)
    assert failure["_ng_failure_class"] == "bad_weather"
    assert "reward" not in failure and "response" not in failure
    [metrics] = json.loads((playground.folder / "out/rollouts_aggregate_metrics.json").read_text())
    assert metrics["agent_metrics"]["mean/reward"] == 1.0


def test_run_prints_its_plan(playground: Playground, capsys: Capture) -> None:
    (playground.folder / "prompt.yaml").write_text("user: '{q}'")
    playground.write_input({"q": 1}, {"q": 2}, {"q": 3})
    playground.collect(
        limit=2,
        num_repeats={"scripted": 3, "absent": 1},
        num_repeats_add_seed=True,
        responses_create_params={"temperature": 0.25},
        prompt_config="prompt.yaml",
        num_samples_in_parallel=7,
    )
    stderr = capsys.readouterr().err
    for text in ("limit 2", "'scripted': 3", "with seeds", "agent scripted", "'temperature': 0.25"):
        assert text in stderr
    assert "prompt.yaml" in stderr and "At most 7 rollouts" in stderr and "embedded" in stderr
    assert "6 rollouts to run" in stderr
    assert "warning: num_repeats has entries for agents that do not occur: absent" in stderr
    assert "Collecting rollouts: 6/6" in stderr


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"),
        ("max_output_token", "max_output_tokens"),
        ("max_tokens", "max_output_tokens"),
        ("max_completion_tokens", "max_output_tokens"),
        ("previous_responses_id", "previous_response_id"),
    ],
)
def test_parameter_similar_to_one_of_the_api_causes_a_warning(
    playground: Playground, capsys: Capture, name: str, meant: str
) -> None:
    playground.collect(responses_create_params={name: 7, "temperature": 0.5})
    [warning] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert f".{name} is not a parameter" in warning and f"(did you mean {meant}?)" in warning
    assert all(json.loads(body)["responses_create_params"][name] == 7 for body in playground.bodies())


def test_known_endpoint_parameters_cause_no_warning(playground: Playground, capsys: Capture) -> None:
    names = ("top_k", "min_p", "stop", "n", "logprobs", "repetition_penalty", "extra_body", "seed", "store")
    playground.collect(responses_create_params=dict.fromkeys(names, 1))
    assert "warning" not in capsys.readouterr().err


def test_unknown_agent_is_refused_with_the_closest_name_before_anything_starts(
    playground: Playground,
) -> None:
    with pytest.raises(ValueError, match="did you mean scripted"):
        playground.collect(agent_name="scripte")
    assert playground.names() == set()


def test_complete_plan_is_on_disk_before_the_first_rollout_starts(playground: Playground) -> None:
    found: list[list[Row]] = []

    def script(_: Row) -> list[Item]:
        found.append(records_of(playground.materialized))
        return [message("The answer is 1.")]

    with ScriptedEndpoint(script) as endpoint:
        playground.config_paths, playground.servers = CALCULATOR, dict(endpoint.settings)
        settings = {"agent_name": CALCULATOR_AGENT, "num_repeats": 2}
        playground.write_input(row("a", expected_answer="1"), row("b", expected_answer="2"))
        rollouts = playground.collect(**settings)
    expected = RolloutCollectionHelper()._preprocess_rows_from_config(playground.config(**settings))
    assert len(found) == len(expected) == 4
    assert all(rows == expected for rows in found)
    assert [one["reward"] for one in rollouts] == [1.0, 1.0, 0.0, 0.0]
    assert all(one["response"]["output"][0]["content"][0]["text"] for one in rollouts)


def test_further_fields_of_a_row_travel_untouched_to_the_verifier_and_into_the_rollout(
    playground: Playground,
) -> None:
    fields = {
        "expected_answer": "1",
        "verifier_metadata": {"z": 2**70, "a": [1.0, -0.0, 0.1, 5e-324, 1e300], "": None},
        "words": "é 日本 😀 \u2028 \x00",
    }
    with ScriptedEndpoint(lambda _: [message("The answer is 1.")]) as endpoint:
        playground.config_paths, playground.servers = CALCULATOR, dict(endpoint.settings)
        playground.write_input(row("a", **fields))
        [rollout] = playground.collect(agent_name=CALCULATOR_AGENT)
    assert rollout["reward"] == 1.0
    assert json.dumps({name: rollout[name] for name in fields}) == json.dumps(fields)


class SlowEndpoint(ScriptedEndpoint):
    """Holds requests until `enough` are in flight, and `a` until another request has its response."""

    def __init__(self, enough: int) -> None:
        super().__init__(self.respond_to)
        self.most = 0
        self._enough = enough
        self._in_flight = 0
        self._full = asyncio.Event()
        self._other_done = asyncio.Event()

    def respond_to(self, request: Row) -> list[Item] | web.Response:
        if user_text(request) == "bad":
            return web.json_response({"error": "no"}, status=400)
        return [message("The answer is 1.")]

    async def _respond(self, request: web.Request) -> web.Response:
        self._in_flight += 1
        self.most = max(self.most, self._in_flight)
        if self._in_flight >= self._enough:
            self._full.set()
        await asyncio.wait_for(self._full.wait(), 30)
        try:
            if b'"a"' in await request.read():
                await asyncio.wait_for(self._other_done.wait(), 30)
            else:
                self._other_done.set()
            return await super()._respond(request)
        finally:
            self._in_flight -= 1


def examples(*texts: str) -> list[Row]:
    """Input rows for `run_examples`."""
    ref = {"name": CALCULATOR_AGENT}
    return [
        row(text, agent_ref=ref, expected_answer="1", _ng_task_index=task, _ng_rollout_index=0)
        for task, text in enumerate(texts)
    ]


async def run_all(endpoint: ScriptedEndpoint, rows: list[Row], **options: Any) -> list[tuple[Row, Row]]:
    async with nemo_gym.open_servers(CALCULATOR, endpoint.settings):
        return [await one for one in RolloutCollectionHelper().run_examples(rows, **options)]


def test_examples_are_returned_in_order_of_completion() -> None:
    rows = examples("a", "b")
    with SlowEndpoint(enough=2) as endpoint:
        pairs = asyncio.run(run_all(endpoint, rows))
    assert [given for given, _ in pairs] == [rows[1], rows[0]]
    assert [(one["_ng_task_index"], one["reward"]) for _, one in pairs] == [(1, 1.0), (0, 1.0)]
    assert all(one["agent_ref"] == {"name": CALCULATOR_AGENT} for _, one in pairs)


def test_failed_example_raises_and_the_others_are_still_returned() -> None:
    async def run() -> tuple[int, list[ServerCallError]]:
        done, errors = 0, []
        async with nemo_gym.open_servers(CALCULATOR, endpoint.settings):
            for one in RolloutCollectionHelper().run_examples(examples("b", "bad", "c")):
                try:
                    await one
                    done += 1
                except ServerCallError as error:
                    errors.append(error)
        return done, errors

    with SlowEndpoint(enough=1) as endpoint:
        done, [error] = asyncio.run(run())
    assert done == 2
    assert error.origin_status == 400


def test_example_that_its_agent_declares_failed_raises(playground: Playground) -> None:
    playground.set_response(
        "0:0", reward=-1.0, _ng_failure_class="bad_weather", _ng_failure_judge_error="it rains"
    )
    playground.set_response("1:0", "[1]")
    ref = {"name": "scripted"}
    rows = [row("a", agent_ref=ref, _ng_task_index=task, _ng_rollout_index=0) for task in range(3)]

    async def run() -> list[Exception | tuple[Row, Row]]:
        async with nemo_gym.open_servers(playground.config_paths, playground.servers):
            futures = list(RolloutCollectionHelper().run_examples(rows))
            return await asyncio.gather(*futures, return_exceptions=True)

    results = asyncio.run(run())
    errors = sorted(str(one) for one in results if isinstance(one, Exception))
    assert errors == [
        "scripted declared this rollout failed (bad_weather): it rains",
        "the response of scripted is not a JSON object: [1]; `verify` has to return one with a reward",
    ]
    assert [given for given, _ in (one for one in results if isinstance(one, tuple))] == rows[2:]


def test_semaphore_of_the_caller_is_respected() -> None:
    with (endpoint := SlowEndpoint(enough=3)):

        async def run() -> int:
            return len(await run_all(endpoint, examples(*"bcdefghijkl"), semaphore=asyncio.Semaphore(3)))

        assert asyncio.run(run()) == 11
        assert endpoint.most == 3


def test_without_a_semaphore_at_most_256_are_in_flight() -> None:
    with (endpoint := SlowEndpoint(enough=256)):
        assert len(asyncio.run(run_all(endpoint, examples(*["b"] * 300)))) == 300
        assert endpoint.most == 256


def test_number_of_rollouts_in_flight_is_respected(playground: Playground) -> None:
    with (endpoint := SlowEndpoint(enough=3)):
        playground.config_paths, playground.servers = CALCULATOR, dict(endpoint.settings)
        playground.write_input(*examples(*"bcdefgh"))
        assert len(playground.collect(num_samples_in_parallel=3)) == 7
        assert endpoint.most == 3


def test_client_is_that_of_the_servers_that_are_open() -> None:
    async def run() -> None:
        async with nemo_gym.open_servers(CALCULATOR, endpoint.settings) as client:
            assert RolloutCollectionHelper().setup_server_client() is client

    with SlowEndpoint(enough=1) as endpoint:
        asyncio.run(run())


def test_missing_head_server_is_an_error_that_says_so() -> None:
    head = BaseServerConfig(host="127.0.0.1", port=free_port())
    with pytest.raises(HeadServerUnreachableError, match=str(head.port)):
        RolloutCollectionHelper().setup_server_client(head)


def test_remaining_and_finished_rollouts_are_in_output_order(playground: Playground) -> None:
    playground.set_response("1:0", "[]")
    playground.set_response("2:0", _ng_failure_class="hopeless", _ng_failure_terminal=True)
    playground.collect(num_repeats=2)
    rows = {keys_of([one])[0]: one for one in records_of(playground.materialized)}
    lines = playground.output.read_bytes().splitlines(keepends=True)
    playground.output.write_bytes(b"".join(reversed(lines)).replace(b"\n", b" \r\n"))
    playground.input.unlink()
    config = playground.config(num_repeats=2, resume_from_cache=True)
    cache = RolloutCollectionHelper()._load_from_cache(config)
    assert type(cache) is tuple and len(cache) == 4 and all(type(part) is list for part in cache)
    left, done, results, texts = cache
    assert left == [rows["1:0"]]
    order = keys_of(records_of(playground.output))
    assert sorted(order) == ["0:0", "0:1", "1:1", "2:1"]
    assert done == [rows[key] for key in order]
    assert keys_of(results) == order and all(one["reward"] == 1.0 for one in results)
    assert texts == [[line.strip()] for line in reversed(lines)]


def test_metrics_of_results_are_written_by_agent(playground: Playground) -> None:
    named, nameless = row(agent_ref={"name": "scripted"}, _ng_task_index=0), row(agent_ref={})

    async def write(results: list[Row], rows: list[Row]) -> Path | None:
        async with nemo_gym.open_servers(playground.config_paths, playground.servers):
            return await RolloutCollectionHelper()._call_aggregate_metrics(results, rows, Path("some.jsonl"))

    assert asyncio.run(write([], [])) is None
    assert not any(name.startswith("some") for name in os.listdir())
    results: list[Row] = [{"reward": 1.0}, {"reward": 0.0}, {"reward": 100.0}]
    path = asyncio.run(write(results, [named, named, nameless]))
    assert path == Path("some_aggregate_metrics.json")
    text = path.read_text()
    [entry] = json.loads(text)
    assert entry["agent_ref"] == {"name": "scripted"}
    assert entry["agent_metrics"]["mean/reward"] == entry["key_metrics"]["mean/reward"] == 0.5
    assert [group["_ng_task_index"] for group in entry["group_level_metrics"]] == [0]
    assert text.startswith('[\n  {\n    "agent_ref"')
    path = asyncio.run(write([{"reward": 1.0}], [nameless]))
    assert path is not None and json.loads(path.read_text()) == []


def test_summary_of_a_row_omits_missing_fields() -> None:
    whole = row(agent_ref={"name": "a", "type": "b"}, _ng_task_index=0, _ng_rollout_index=2, secret="x")
    assert _rollout_request_debug_summary(whole) == {
        "_ng_task_index": 0,
        "_ng_rollout_index": 2,
        "agent_name": "a",
    }
    assert _rollout_request_debug_summary({"agent_ref": None, "_ng_task_index": None}) == {}
    assert _rollout_request_debug_summary({"agent_ref": {"type": "b"}, "_ng_rollout_index": 1}) == {
        "_ng_rollout_index": 1
    }


def test_rollouts_of_a_replaced_output_raise_an_error(playground: Playground) -> None:
    first = playground.collect()
    playground.collect()
    with pytest.raises(InputError, match="has changed since these rollouts were read"):
        first[0]


def test_result_has_metrics_failures_ledger_and_manifest(playground: Playground) -> None:
    playground.write_input(row("a"), row("b"), row("c"))
    playground.set_response("1:0", body="[]")
    result = playground.collect(max_attempts=1)
    assert (len(result), result.ledger.succeeded, result.ledger.failed.total()) == (2, 2, 1)
    assert result.metrics == json.loads(aggregate_metrics_path_for(playground.output).read_text())
    assert keys_of(result.failures) == ["1:0"]
    assert result.failures[0]["_ng_failure_class"] == "data"
    assert result.manifest == json.loads(manifest_path_for(playground.output).read_text())
    playground.reset_responses()
    resumed = playground.collect(resume_from_cache=True)
    assert (len(resumed), list(resumed.failures)) == (3, [])
    assert playground.collect(disable_aggregation=True).metrics is None


def test_quiet_run_writes_nothing_to_the_terminal(playground: Playground, capfd: Capture) -> None:
    assert len(playground.collect(quiet=True)) == 3
    assert capfd.readouterr() == ("", "")


def test_notes_and_report_speak_python(playground: Playground, capfd: Capture) -> None:
    playground.set_response("1:0", body="[]")
    playground.collect(max_attempts=1)
    error = capfd.readouterr().err
    assert "The same call with resume_from_cache=True" in error and "+resume" not in error


def test_examples_show_their_progress(capfd: Capture) -> None:
    with ScriptedEndpoint(lambda request: [message("1")]) as endpoint:
        asyncio.run(run_all(endpoint, examples("a", "b")))
        assert "Collecting rollouts: 2/2 (100%)" in capfd.readouterr().err
        asyncio.run(run_all(endpoint, examples("a", "b"), quiet=True))
        assert capfd.readouterr().err == ""


def test_metrics_of_results_are_shown_and_tracked(playground: Playground, capfd: Capture) -> None:
    playground.servers["mlflow_tracking_uri"] = f"http://127.0.0.1:{free_port()}"
    results = [row(f"task {task}", reward=float(task), response={}) for task in range(2)]
    rows = [
        row(agent_ref={"name": "scripted"}, _ng_task_index=task, _ng_rollout_index=0) for task in range(2)
    ]

    async def aggregate() -> Path | None:
        async with nemo_gym.open_servers(playground.config_paths, playground.servers):
            helper = RolloutCollectionHelper()
            return await helper._call_aggregate_metrics(results, rows, playground.folder / "all.jsonl")

    assert asyncio.run(aggregate()) == playground.folder / "all_aggregate_metrics.json"
    shown = capfd.readouterr().err
    assert '"mean/reward": 0.5' in shown and "MLflow" in shown


def test_interpolation_in_an_override_from_python_is_filled_in(playground: Playground) -> None:
    rollouts = playground.collect(responses_create_params={"metadata": {"of": "${policy_model_name}"}})
    assert rollouts[0]["responses_create_params"]["metadata"] == {"of": "some-model"}
    with pytest.raises(ConfigError, match=r"policy_mode \(needed by responses_create_params\.model\)"):
        playground.collect(responses_create_params={"model": "${policy_mode}"})


def test_input_is_looked_up_in_the_working_directory_first(
    playground: Playground, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("root")
    (elsewhere / "input.jsonl").write_text(json.dumps(row("elsewhere")) + "\n")
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(elsewhere))
    playground.write_input(row("here"))
    assert playground.collect()[0]["responses_create_params"]["input"] == "here"


def test_address_of_the_head_server_comes_from_env_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.yaml").write_text("my_port: 12345\nhead_server: {port: '${my_port}'}\naccess_token: abc")
    head = ServerClient.load_head_server_config()
    assert (head.host, head.port) == ("127.0.0.1", 12345)
    assert ServerClient._configured_access_token() == "abc"
    with pytest.raises(HeadServerUnreachableError, match=r"127\.0\.0\.1:12345"):
        ServerClient.load_from_global_config()
