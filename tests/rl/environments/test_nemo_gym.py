"""The handle to NeMo Gym, with an embedded agent that follows the script in its rows."""

import asyncio
import json
import pickle
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_gym.config_types import BaseServerConfig, ConfigError
from nemo_gym.errors import HeadServerUnreachableError
from nemo_rl.environments.nemo_gym import NemoGym, NemoGymBatch
from nemo_rl.experience.failures import (
    TERMINAL,
    FailureClass,
    GymTransportError,
    RolloutConfigurationError,
    RolloutDataFailure,
    classify_rollout_failure,
)
from tests.support.commands import free_port
from tests.support.components import write_files
from tests.support.toy_tokenizer import ToyTokenizer
from tests.support.waiting import until

pytestmark = pytest.mark.torch

APP = """
import asyncio
import json
from pathlib import Path

from fastapi import HTTPException, Request, Response

from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from tests.support.waiting import until

playing = 0


def note(what):
    with Path("notes").open("a") as file:
        file.write(what + "\\n")


def is_noted(what):
    return what in Path("notes").read_text().splitlines()


class Agent(SimpleResponsesAPIAgent):
    config: BaseResponsesAPIAgentConfig

    def setup_webserver(self):
        app = super().setup_webserver()
        app.post("/load_weights")(self.load_weights)
        return app

    async def load_weights(self, body: dict) -> dict:
        return {"loaded": body}

    async def run(self, request: Request) -> Response:
        global playing
        row = json.loads(await request.body())
        playing += 1
        note(f"began {row['_rowidx']} of {playing}")
        try:
            if "after" in row:
                await until(lambda: is_noted(row["after"]))
            await asyncio.sleep(row.get("takes_s", 0))
        except asyncio.CancelledError:
            note(f"cancelled {row['_rowidx']}")
            raise
        finally:
            playing -= 1
        if "raises" in row:
            raise RuntimeError(row["raises"])
        if "kind" in row:
            return Response("no", 500, {"x-nemo-gym-failure-kind": row["kind"]})
        if "status" in row:
            raise HTTPException(row["status"], "scripted")
        if "body" in row:
            return Response(row["body"], media_type="application/json")
        tokens = {"prompt_token_ids": [5], "generation_token_ids": [row["_rowidx"] + 20, 2]}
        item = {"type": "message", "content": [], "generation_log_probs": [-0.5, -0.25], **tokens}
        fields = {"reward": 1.0, "response": {"output": [item]}}
        return Response(json.dumps(row | fields | row.get("says", {})), media_type="application/json")
"""
CONFIG = "playing: {responses_api_agents: {playing: {entrypoint: app.py}}}\n"
CONFIG_PATH = "responses_api_agents/playing/configs/playing.yaml"
Gym = NemoGym | NemoGymBatch


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with the agent in it."""
    files = {"app.py": APP, "configs/playing.yaml": CONFIG}
    write_files(tmp_path / "responses_api_agents" / "playing", files)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def note(what: str) -> None:
    """Add a line to the notes. Rows with `after` wait for one."""
    with Path("notes").open("a") as file:
        file.write(what + "\n")


def notes() -> list[str]:
    return Path("notes").read_text().splitlines() if Path("notes").exists() else []


async def until_begun(count: int) -> None:
    """Wait until the agent plays this many rows."""
    await until(lambda: sum(line.startswith("began") for line in notes()) >= count)


def row(rowidx: int, **script: Any) -> dict[str, Any]:
    params = {"input": "5"}
    return {
        "_rowidx": rowidx,
        "agent_ref": {"name": "playing"},
        "responses_create_params": params,
        **script,
    }


async def stream(gym: NemoGym, *rows: dict[str, Any]) -> AsyncIterator[Any]:
    """What `run_rollouts` yields; each result is noted as `yielded 0` before the next one is requested."""
    async for given in gym.run_rollouts(list(rows), ToyTokenizer(), "t"):
        note(f"yielded {given[0]}")
        yield given


async def streamed(gym: NemoGym, *rows: dict[str, Any]) -> list[Any]:
    return [given async for given in stream(gym, *rows)]


def with_gym(use: Callable[[NemoGym], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with NemoGym([CONFIG_PATH], **options) as gym:
            return await use(gym)

    return asyncio.run(run())


def test_results_are_yielded_as_rows_finish_and_the_last_has_the_times() -> None:
    async def use(gym: NemoGym) -> None:
        takes_s = 0.05
        slow, quick, middle = row(0, after="yielded 2", takes_s=takes_s), row(1), row(2, after="yielded 1")
        began_s = time.perf_counter()
        given = await streamed(gym, slow, quick, middle)
        elapsed_s = time.perf_counter() - began_s
        assert [rowidx for rowidx, _, _ in given] == [1, 2, 0]
        assert [timing for _, _, timing in given[:2]] == [None, None]
        for rowidx, result, _ in given:
            assert torch.equal(result["message_log"][1]["token_ids"], torch.tensor([rowidx + 20, 2]))
            assert result["full_result"]["response"]["output"][0]["generation_str"] == f"{rowidx + 20} 2"
        timing = given[-1][2]
        names = ("await_results", "postprocess_results", "postprocess_results_pct")
        wait, work, share = (timing[f"t/{name}"] for name in names)
        assert len(timing) == 3
        # True at any speed: row 0 begins while it is awaited, and `wait` and `work` are disjoint parts of
        # `elapsed_s`. A timer of the event loop may end a little early.
        assert 0.9 * takes_s < wait < wait + work < elapsed_s
        assert share == pytest.approx(100 * work / (wait + work))

    with_gym(use)


def test_batch_returns_results_in_row_order_with_the_times() -> None:
    async def use() -> None:
        async with NemoGymBatch([CONFIG_PATH]) as gym:
            rows = [row(3, takes_s=0.05), row(1)]
            results, timing = await gym.run_rollouts(rows, ToyTokenizer(), "t")
            assert [result["full_result"]["_rowidx"] for result in results] == [3, 1]
            assert timing.keys() == {
                "t/await_results",
                "t/postprocess_results",
                "t/postprocess_results_pct",
            }
            assert await gym.run_rollouts([], ToyTokenizer(), "t") == (
                [],
                dict.fromkeys(timing, 0.0),
            )

    asyncio.run(use())


def test_agent_gets_the_row_unchanged_and_the_row_is_not_modified() -> None:
    async def use(gym: NemoGym) -> None:
        given = row(4, expected="4")
        before = json.dumps(given)
        ((_, result, _),) = await streamed(gym, given)
        full_result = result["full_result"]
        assert json.dumps(given) == before
        assert {key: full_result[key] for key in given} == given
        assert full_result.keys() - given.keys() == {"reward", "response"}

    with_gym(use)


def failure(**script: Any) -> Exception:
    async def use(gym: NemoGym) -> Exception:
        with pytest.raises(Exception) as caught:
            await streamed(gym, row(0, **script))
        return caught.value

    error: Exception = with_gym(use)
    return error


def as_one_text(error: Exception) -> bool:
    """Whether it has one text and survives pickling."""
    again = pickle.loads(pickle.dumps(error))
    return type(again) is type(error) and again.args == error.args == (str(error),)


@pytest.mark.parametrize("status", [503, 502, 429, 408])
def test_temporary_error_status_is_an_infrastructure_failure(status: int) -> None:
    error = failure(status=status)
    assert type(error) is GymTransportError
    assert f"POST playing/run: {status}" in str(error)
    assert as_one_text(error)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_refusal_is_a_data_failure(status: int) -> None:
    error = failure(status=status)
    assert type(error) is RolloutDataFailure
    assert as_one_text(error)
    assert classify_rollout_failure(error) is FailureClass.DATA


def test_wrong_configuration_of_a_model_server_ends_the_run() -> None:
    error = failure(kind="configuration")
    assert type(error) is RolloutConfigurationError
    assert isinstance(error, TERMINAL) and as_one_text(error)


def test_status_decides_if_the_kind_is_unknown() -> None:
    assert type(failure(kind="infrastucture")) is GymTransportError


def test_bug_of_an_environment_is_a_data_failure() -> None:
    error = failure(raises="a bug")
    assert type(error) is RolloutDataFailure
    assert "a bug" in str(error)


def test_response_that_is_not_json_is_an_infrastructure_failure() -> None:
    error = failure(body="<html>")
    assert type(error) is GymTransportError
    assert as_one_text(error)


def test_response_that_is_not_an_object_is_refused_with_its_row() -> None:
    error = failure(body="[1]")
    assert type(error) is AssertionError
    assert error.__notes__ == ["in the response for row 0"]


def test_row_that_takes_too_long_is_an_infrastructure_failure() -> None:
    async def use(gym: NemoGym) -> None:
        with pytest.raises(GymTransportError, match=r"no response to POST /run within 0\.05 s"):
            await streamed(gym, row(0, takes_s=10))

    with_gym(use, row_timeout_s=0.05)


@pytest.mark.parametrize(
    ("failure_class", "expected"),
    [
        ("judge_failed", GymTransportError),
        ("infrastructure", GymTransportError),
        ("timeout", GymTransportError),
        ("cancelled", GymTransportError),
        ("data", RolloutDataFailure),
        ("bad_weather", RolloutDataFailure),
        ("configuration", RolloutConfigurationError),
    ],
)
def test_rollout_that_is_declared_failed_raises_by_its_kind(
    failure_class: str, expected: type[Exception]
) -> None:
    says = {"reward": 0.0, "_ng_failure_class": failure_class, "_ng_failure_judge_error": "no verdict"}
    error = failure(says=says)
    assert type(error) is expected
    assert str(error) == f"playing declared this rollout failed ({failure_class}): no verdict"
    assert as_one_text(error)


def test_unknown_agent_is_an_error_that_lists_the_known_ones() -> None:
    async def use(gym: NemoGym) -> None:
        with pytest.raises(ConfigError, match=r"'absent'; known servers: playing"):
            await streamed(gym, row(0, agent_ref={"name": "absent"}))
        with pytest.raises(KeyError, match="agent_ref"):
            await streamed(gym, {"_rowidx": 0})

    with_gym(use)


@pytest.mark.parametrize(
    ("status", "takes_s", "failure", "expected"),
    [(400, 100, RolloutDataFailure, [2]), (503, 0.1, GymTransportError, [2, 0])],
)
def test_refused_row_cancels_the_others_and_an_outage_lets_them_finish(
    status: int, takes_s: float, failure: type[Exception], expected: list[int]
) -> None:
    async def use(gym: NemoGym) -> None:
        slow, failing = row(0, after="yielded 2", takes_s=takes_s), row(1, after="yielded 2", status=status)
        seen = []
        with pytest.raises(failure):
            async for rowidx, _, _ in stream(gym, slow, failing, row(2)):
                seen.append(rowidx)
        assert seen == expected
        assert (notes()[-1] == "cancelled 0") == (0 not in expected)

    with_gym(use)


def test_closing_the_stream_early_cancels_its_rows() -> None:
    async def use(gym: NemoGym) -> None:
        rows = [row(0, takes_s=100), row(1), row(2, takes_s=100)]
        async with aclosing(gym.run_rollouts(rows, ToyTokenizer(), "t")) as stream:
            async for rowidx, _, _ in stream:
                assert rowidx == 1
                break
        assert sorted(notes()[-2:]) == ["cancelled 0", "cancelled 2"]

    with_gym(use)


def test_cancelling_a_batch_cancels_its_rows() -> None:
    async def use() -> None:
        async with NemoGymBatch([CONFIG_PATH]) as gym:
            rows = [row(0, takes_s=100), row(1, takes_s=100)]
            batch = asyncio.create_task(gym.run_rollouts(rows, ToyTokenizer(), "t"))
            await until_begun(2)
            batch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await batch
            assert sorted(notes()[-2:]) == ["cancelled 0", "cancelled 1"]

    asyncio.run(use())


def test_limit_of_concurrent_rows_holds_over_all_calls() -> None:
    async def use(gym: NemoGym) -> None:
        rows = [row(rowidx, after="both play", takes_s=0.01) for rowidx in range(5)]
        calls = [asyncio.create_task(streamed(gym, *rows)) for _ in range(3)]
        await until_begun(2)
        note("both play")
        await asyncio.gather(*calls)
        at_once = [int(line.rpartition(" ")[2]) for line in notes() if line.startswith("began")]
        assert (len(at_once), max(at_once)) == (15, 2)

    with_gym(use, max_concurrent_rows=2)


def test_weights_are_sent_to_the_model_server_with_their_version() -> None:
    async def use(gym: NemoGym) -> None:
        response = await gym.load_weights("playing", Path("weights.gguf"), 3)
        assert response == {"loaded": {"model_path": "weights.gguf", "weight_version": 3}}

    with_gym(use)


@asynccontextmanager
async def opened_twice() -> AsyncIterator[NemoGym]:
    gym = NemoGym([CONFIG_PATH])
    async with gym:
        pass
    async with gym:
        yield gym


def test_handle_can_be_reopened_and_refuses_calls_when_closed() -> None:
    async def use() -> None:
        async with opened_twice() as gym:
            assert len(await streamed(gym, row(0))) == 1
        with pytest.raises(RuntimeError, match=r"async with NemoGym"):
            await streamed(gym, row(0))

    asyncio.run(use())


def test_handle_can_be_opened_in_another_event_loop() -> None:
    gym = NemoGym([CONFIG_PATH], max_concurrent_rows=1)

    async def use() -> int:
        async with gym:
            return len(await streamed(gym, *(row(rowidx) for rowidx in range(3))))

    assert [asyncio.run(use()) for _ in range(2)] == [3, 3]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"config_paths": ["x.yaml"], "head_server": "127.0.0.1:1"},
        {"head_server": "nowhere"},
        {"config_paths": ["x.yaml"], "max_concurrent_rows": 0},
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"config_paths|host:port|max_concurrent_rows"):
        NemoGym(**arguments)


@pytest.mark.parametrize("as_text", [True, False])
def test_unreachable_head_server_is_named(as_text: bool) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}" if as_text else BaseServerConfig(host="127.0.0.1", port=port)

    async def use() -> None:
        async with NemoGym(head_server=address):
            pass

    with pytest.raises(HeadServerUnreachableError, match=str(port)):
        asyncio.run(use())
