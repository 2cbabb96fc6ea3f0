"""Steps of every kind of environment."""

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch

from nemo_rl.environments.environment_steps import EnvironmentDispatch
from nemo_rl.environments.interfaces import EnvironmentReturn
from nemo_rl.experience.failures import RolloutTimeout

pytestmark = pytest.mark.torch


def results(logs: list[Any], metadata: list[Any], name: str = "plain") -> EnvironmentReturn[Any]:
    return EnvironmentReturn(
        observations=[{"role": "environment", "content": f"{name} {log[-1]['content']}"} for log in logs],
        metadata=[{**state, "stepped": True} for state in metadata],
        next_stop_strings=None,
        rewards=torch.tensor([float(len(log)) for log in logs]),
        terminateds=torch.tensor([True] * len(logs)),
        answers=None,
    )


class Plain:
    def __init__(self, name: str = "plain") -> None:
        self.name = name
        self.batches: list[int] = []

    def step(self, logs: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
        self.batches.append(len(logs))
        return results(logs, metadata, self.name)


class Meeting(Plain):
    """Each step waits until `together` steps run, and counts the steps that run."""

    def __init__(self, together: int = 1) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.most_running = 0
        self._running = 0
        self._lock = threading.Lock()
        self._all_here = threading.Barrier(together, timeout=30)

    def step(self, logs: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
        with self._lock:
            self._running += 1
            self.most_running = max(self.most_running, self._running)
            self.threads.add(threading.get_ident())
        self._all_here.wait()
        time.sleep(0.005)  # one step too many would begin meanwhile
        with self._lock:
            self._running -= 1
        return super().step(logs, metadata)


class Coroutine:
    async def step(self, logs: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
        await asyncio.sleep(0)
        return results(logs, metadata, "coroutine")


class Remote:
    """Like the handle of an actor: a method with `remote`, whose result is awaitable."""

    class step:
        @staticmethod
        def remote(logs: list[Any], metadata: list[Any]) -> "asyncio.Future[EnvironmentReturn[Any]]":
            future: asyncio.Future[EnvironmentReturn[Any]] = asyncio.get_running_loop().create_future()
            future.set_result(results(logs, metadata, "remote"))
            return future


def log(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text, "token_ids": torch.tensor([1])} for text in texts]


def step(
    environments: dict[str, Any], tasks: list[str], logs: list[Any], **more: Any
) -> EnvironmentReturn[Any]:
    dispatch = EnvironmentDispatch(environments, **more)
    return asyncio.run(dispatch.step(tasks, logs, [{"row": row} for row in range(len(tasks))]))


@pytest.mark.parametrize(
    ("environment", "name"), [(Plain(), "plain"), (Coroutine(), "coroutine"), (Remote(), "remote")]
)
def test_plain_objects_coroutines_and_actors_give_the_same_result(environment: Any, name: str) -> None:
    result = step({"a": environment}, ["a"], [log("x", "y")])
    assert result.observations == [{"role": "environment", "content": f"{name} y"}]
    assert result.next_stop_strings == [None] and result.answers == [None]
    assert result.rewards.tolist() == [2.0] and result.metadata == [{"row": 0, "stepped": True}]


def test_environment_that_replaces_another_is_the_one_that_is_stepped() -> None:
    class Unbound:
        """Its step does not keep it alive, so the next one may get the same id."""

        def __init__(self, name: str) -> None:
            self.step = lambda logs, metadata: results(logs, metadata, name)

    task_to_env: dict[str, Any] = {}
    dispatch = EnvironmentDispatch(task_to_env)
    for name in map(str, range(20)):
        task_to_env.pop("toy", None)
        task_to_env["toy"] = Unbound(name)
        log = [{"role": "user", "content": "hello", "token_ids": torch.tensor([1])}]
        step = asyncio.run(dispatch.step(["toy"], [log], [{}]))
        assert step.observations[0]["content"] == f"{name} hello"


def test_environment_sees_only_role_and_content() -> None:
    seen: list[Any] = []

    class Looking(Plain):
        def step(self, logs: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
            seen.extend(logs)
            return super().step(logs, metadata)

    step({"a": Looking()}, ["a"], [log("x")])
    assert seen == [[{"role": "user", "content": "x"}]]


def test_rows_of_one_task_are_stepped_together_and_results_are_in_row_order() -> None:
    one, other = Plain("one"), Plain("other")
    logs = [log("0"), log("1", "1"), log("2"), log("3", "3", "3")]
    result = step({"a": one, "b": other, "c": Coroutine()}, ["b", "a", "c", "b"], logs)
    assert [observation["content"] for observation in result.observations] == [
        "other 0",
        "one 1",
        "coroutine 2",
        "other 3",
    ]
    assert result.rewards.tolist() == [1.0, 2.0, 1.0, 3.0]
    assert [state["row"] for state in result.metadata] == [0, 1, 2, 3]
    assert (one.batches, other.batches) == ([1], [2])


def test_rewards_by_name_and_plain_rewards_do_not_mix() -> None:
    class Named(Plain):
        def step(self, logs: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
            given = super().step(logs, metadata)
            return given._replace(rewards={"style": given.rewards})

    with pytest.raises(AssertionError, match="a batch cannot have both"):
        step({"a": Plain(), "b": Named()}, ["a", "b"], [log("x"), log("y")])
    both = step({"a": Named(), "b": Named()}, ["b", "a", "b"], [log("x"), log("y", "y"), log("z")])
    assert both.rewards["style"].tolist() == [1.0, 2.0, 1.0]  # type: ignore[index]


def test_task_without_an_environment_is_refused_before_any_step() -> None:
    environment = Plain()
    with pytest.raises(ValueError, match="no environment for task 'b'; known tasks: 'a'"):
        step({"a": environment}, ["a", "b"], [log("x"), log("y")])
    assert environment.batches == []


@pytest.mark.parametrize("concurrency", [1, 3])
def test_steps_of_a_plain_object_run_at_once_up_to_its_concurrency(concurrency: int) -> None:
    async def play(environment: Meeting) -> None:
        dispatch = EnvironmentDispatch({"a": environment, "b": environment}, concurrency)
        await asyncio.gather(*(dispatch.step(["ab"[n % 2]], [log("x")], [{}]) for n in range(12)))

    environment = Meeting(concurrency)
    asyncio.run(play(environment))
    assert len(environment.threads) == environment.most_running == concurrency
    assert threading.get_ident() not in environment.threads


def test_plain_object_is_stepped_once_at_a_time_over_all_dispatches() -> None:
    async def play(environment: Meeting) -> None:
        dispatches = [EnvironmentDispatch({"a": environment}) for _ in range(2)]
        await asyncio.gather(*(dispatches[n % 2].step(["a"], [log("x")], [{}]) for n in range(12)))

    environment = Meeting()
    asyncio.run(play(environment))
    assert environment.most_running == 1


def test_tasks_of_one_batch_are_stepped_concurrently() -> None:
    async def play() -> EnvironmentReturn[Any]:
        here = asyncio.Barrier(2)

        class MeetingCoroutine(Coroutine):
            async def step(self, logs: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
                await here.wait()
                return await super().step(logs, metadata)

        dispatch = EnvironmentDispatch({"a": MeetingCoroutine(), "b": MeetingCoroutine()})
        async with asyncio.timeout(30):
            return await dispatch.step(["a", "b"], [log("x"), log("y")], [{}, {}])

    assert len(asyncio.run(play()).observations) == 2


@pytest.mark.parametrize("kind", [Plain, Coroutine])
def test_step_that_takes_too_long_is_a_timeout(kind: Any) -> None:
    released = threading.Event()

    class Slow(kind):  # type: ignore[misc]
        def step(self, logs: list[Any], metadata: list[Any]) -> Any:
            return released.wait() if kind is Plain else asyncio.sleep(3600)

    try:
        with pytest.raises(RolloutTimeout, match=r"a step of the environment took longer than 0\.02 s"):
            step({"a": Slow()}, ["a"], [log("x")], step_limit_s=0.02)
    finally:
        released.set()


def test_optional_fields_of_a_step_may_be_none() -> None:
    class Terse(Plain):
        def step(self, logs: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
            return super().step(logs, metadata)._replace(metadata=None)  # type: ignore[arg-type]

    assert step({"a": Terse()}, ["a"], [log("x")]).metadata == [None]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("observations", [], r"observations \[\]; expected one for each of 1 rows"),
        ("metadata", [], "metadata"),
        ("terminateds", None, "terminateds None"),
        ("terminateds", torch.tensor(True), "terminateds"),
        ("rewards", torch.ones(2), r"rewards of shape \[2\]; expected \[1\]"),
        ("rewards", torch.ones(1, 1), r"rewards of shape \[1, 1\]"),
        ("observations", [{"content": "x"}], "a dict of role and content"),
        ("observations", [{"role": "tool", "content": None}], "a dict of role and content"),
        ("observations", ["x"], "a dict of role and content"),
        ("next_stop_strings", "x", "next_stop_strings 'x'"),
    ],
)
def test_invalid_field_of_a_step_is_named_with_what_was_expected(
    field: str, value: Any, message: str
) -> None:
    class Odd(Plain):
        def step(self, logs: list[Any], metadata: list[Any]) -> EnvironmentReturn[Any]:
            return super().step(logs, metadata)._replace(**{field: value})

    with pytest.raises(TypeError, match=f"step of the environment of task 'a' returned .*{message}"):
        step({"a": Odd()}, ["a"], [log("x")])


def test_step_that_does_not_return_an_environment_return_is_refused() -> None:
    class Nothing(Plain):
        def step(self, logs: list[Any], metadata: list[Any]) -> Any:
            return None

    with pytest.raises(
        TypeError, match=r"task 'a' returned NoneType; expected an EnvironmentReturn\(observations"
    ):
        step({"a": Nothing()}, ["a"], [log("x")])


def test_environment_that_hangs_does_not_keep_the_process_alive() -> None:
    code = """
import asyncio, threading
from nemo_rl.environments.environment_steps import EnvironmentDispatch
class Hanging:
    def step(self, logs, metadata):
        threading.Event().wait()
async def play():
    async with asyncio.timeout(0.1):
        await EnvironmentDispatch({"a": Hanging()}).step(["a"], [[]], [None])
try:
    asyncio.run(play())
except TimeoutError:
    print("left")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "left\n", done.stderr
