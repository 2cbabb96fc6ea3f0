"""The manager chooses an implementation, and retries, skips or drops a prompt whose group fails."""

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from nemo_rl.experience import rollout_manager
from nemo_rl.experience.buffer import PromptGroupBuffer
from nemo_rl.experience.failures import (
    TERMINAL,
    RolloutDataFailure,
    RolloutRedispatchExhausted,
    RolloutTimeout,
)
from nemo_rl.experience.interfaces import PromptGroupRecord
from nemo_rl.experience.retry_budgets import RolloutRetryPolicy
from nemo_rl.experience.rollout_manager import (
    AsyncNemoGymRolloutImpl,
    AsyncRolloutImpl,
    RolloutManager,
    RolloutOutcome,
)
from tests.support.toy_tokenizer import ToyTokenizer

POLICY: Any = object()
TOKENIZER: Any = ToyTokenizer()
CONFIG: Any = {
    **{"backend": "x", "max_new_tokens": 8, "temperature": 1.0, "top_p": 1.0, "top_k": None},
    **{"stop_token_ids": None, "stop_strings": None},
}


def test_published_names_can_be_imported_without_loading_heavy_packages() -> None:
    code = (
        "import sys\n"
        "from nemo_rl.experience.rollout_manager import RolloutManager, AsyncRolloutImpl, "
        "AsyncNemoGymRolloutImpl\n"
        "from nemo_rl.experience.interfaces import Completion, PromptGroupRecord\n"
        "from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn\n"
        "from nemo_rl.models.generation.interfaces import GenerationInterface, GenerationConfig, "
        "GenerationDatumSpec, GenerationOutputSpec\n"
        "from nemo_rl.data.interfaces import DatumSpec\n"
        "from nemo_rl.distributed.batched_data_dict import BatchedDataDict\n"
        "from nemo_rl.utils.timer import Timer\n"
        "import nemo_rl.experience.failures, nemo_rl.environments.nemo_gym, nemo_rl.experience.adapters\n"
        "import nemo_rl.models.generation.transformers_generation, nemo_rl.models.weights\n"
        "heavy = {'torch', 'transformers', 'ray', 'wandb', 'vllm', 'gguf', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.torch
def test_tokenizer_type_is_the_base_class_of_transformers() -> None:
    from transformers import PreTrainedTokenizerBase

    assert rollout_manager.TokenizerType is PreTrainedTokenizerBase


def test_signature_is_the_published_one() -> None:
    parameters = inspect.signature(RolloutManager.__init__).parameters
    positional = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert positional == [
        *("self", "tokenizer", "task_to_env", "num_generations_per_prompt", "max_seq_len"),
        *("max_rollout_turns", "policy_generation", "generation_config", "use_nemo_gym"),
    ]
    assert [parameters[name].default for name in positional[5:]] == [None, None, None, False]


def test_missing_arguments_are_reported_in_the_published_order() -> None:
    for settings, message in [
        ({"num_generations_per_prompt": 0}, "num_generations_per_prompt must be >= 1"),
        ({}, "policy_generation is required"),
        ({"use_nemo_gym": True}, "generation_config is required"),
    ]:
        arguments = {"num_generations_per_prompt": 2, "max_seq_len": 16, **settings}
        with pytest.raises(AssertionError, match=message):
            RolloutManager(TOKENIZER, {}, **arguments)  # type: ignore[arg-type]


def test_use_nemo_gym_chooses_the_implementation() -> None:
    native = RolloutManager(TOKENIZER, {}, 2, 16, policy_generation=POLICY)
    assert isinstance(native._impl, AsyncRolloutImpl) and native._impl.max_rollout_turns == 999999
    capped = RolloutManager(TOKENIZER, {}, 2, 16, 3, POLICY, CONFIG)
    assert isinstance(capped._impl, AsyncRolloutImpl) and capped._impl.max_rollout_turns == 3
    gym = RolloutManager(TOKENIZER, {}, 2, 16, None, POLICY, CONFIG, True)
    assert isinstance(gym._impl, AsyncNemoGymRolloutImpl)


class Buffer(PromptGroupBuffer):
    """Records the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[Any, ...]] = []

    def reserve(self, weight_version: int, target_step: int | None = None) -> int:
        group_id = super().reserve(weight_version, target_step)
        self.log.append(("reserve", group_id, weight_version, target_step))
        return group_id

    async def commit(self, group_id: int, record: PromptGroupRecord, start: int, end: int) -> None:  # type: ignore[override]
        await super().commit(group_id, record, start, end)
        self.log.append(("commit", group_id, start, end))

    async def remove_group(self, group_id: int) -> None:
        await super().remove_group(group_id)
        self.log.append(("remove", group_id))


class ScriptedManager(RolloutManager):
    """Each call of `run_rollout` does the next step of the script."""

    def __init__(self, *script: Exception | Callable[[], Any] | None, **options: Any) -> None:
        super().__init__(TOKENIZER, {}, 2, 16, policy_generation=POLICY, **options)
        self.script = list(script)

    async def run_rollout(self, input_sample: Any) -> PromptGroupRecord:
        step = self.script.pop(0) if self.script else None
        if isinstance(step, Exception):
            raise step
        if step is not None:
            await step() if inspect.iscoroutinefunction(step) else step()
        return PromptGroupRecord(input_sample["idx"], [], None, {}, [], {})


def manager_of(*script: Any, **policy: Any) -> tuple[RolloutManager, Buffer, list[float]]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    buffer = Buffer()
    budgets = {"max_infra_attempts": 1, "max_data_attempts": 1, "max_gym_row_attempts": 1, **policy}
    retry_policy = RolloutRetryPolicy(**budgets)
    manager = ScriptedManager(*script, buffer=buffer, retry_policy=retry_policy, sleep=sleep)
    return manager, buffer, slept


def push(manager: RolloutManager, idx: int = 0, **more: Any) -> RolloutOutcome:
    sample: Any = {"idx": idx}
    return asyncio.run(manager.generate_and_push(sample, **more))


def test_generate_and_push_needs_a_buffer() -> None:
    manager = RolloutManager(TOKENIZER, {}, 2, 16, policy_generation=POLICY)
    with pytest.raises(AssertionError, match="buffer"):
        push(manager)


@pytest.mark.torch
def test_group_that_the_implementation_played_is_pushed() -> None:
    from tests.support.native_rollouts import managed, sample
    from tests.support.scripted_policy import ScriptedEnvironment, ScriptedGeneration, Step, Turn

    buffer = Buffer()
    policy = ScriptedGeneration([[Turn([21])], [Turn([22])]])
    manager = managed(policy, ScriptedEnvironment([Step(terminated=True)]), 2, buffer=buffer)
    assert asyncio.run(manager.generate_and_push(sample(idx=5))) is RolloutOutcome.COMMITTED
    (group,) = asyncio.run(buffer.take(1))
    assert group.prompt_idx == 5
    assert [one.message_log[1]["token_ids"].tolist() for one in group.completions] == [[21], [22]]


def test_b1_delay_grows_with_each_infrastructure_failure() -> None:
    errors = [RolloutTimeout("slow")] * 5
    manager, _, slept = manager_of(*errors, max_infra_attempts=6, backoff_base_s=0.5, max_backoff_s=3)
    assert push(manager) is RolloutOutcome.COMMITTED
    assert slept == [0.5, 1, 2, 3, 3]
    assert manager.stats.as_metrics()["rollout/redispatch_total/RolloutTimeout"] == 5.0


def test_b2_group_has_the_weight_versions_of_its_begin_and_end() -> None:
    manager, buffer, _ = manager_of(lambda: manager.set_weight_version(5))
    manager.set_weight_version(3)
    assert push(manager, target_step=9) == "committed"
    assert buffer.log == [("reserve", 0, 3, 9), ("commit", 0, 3, 5)]
    (group,) = asyncio.run(buffer.take(1))
    assert group.weight_versions == (3, 5)


def test_b5_every_failed_attempt_removes_its_own_slot() -> None:
    errors = [ConnectionError("gone")] * 3
    manager, buffer, _ = manager_of(*errors, max_infra_attempts=3, max_consecutive_dropped_prompts=1)
    assert push(manager) is RolloutOutcome.SKIPPED
    assert [(entry[0], entry[1]) for entry in buffer.log] == [
        *(("reserve", 0), ("remove", 0), ("reserve", 1), ("remove", 1), ("reserve", 2), ("remove", 2)),
    ]
    assert buffer.reserved == 0 and len(buffer) == 0


def test_data_failures_are_retried_without_delay_within_their_own_budget() -> None:
    manager, _, slept = manager_of(ValueError("odd"), max_data_attempts=2)
    assert push(manager) is RolloutOutcome.COMMITTED and slept == []
    assert manager.stats.as_metrics()["rollout/data_retry_total"] == 1.0


def test_original_error_is_raised_if_no_prompt_may_be_skipped() -> None:
    error = ValueError("odd")
    manager, _, _ = manager_of(error)
    with pytest.raises(ValueError) as failed:
        push(manager)
    assert failed.value is error


def test_prompts_are_skipped_up_to_the_limit_of_the_run() -> None:
    manager, _, _ = manager_of(*[ValueError("odd")] * 3, max_skipped_prompts=2)
    assert [push(manager, idx) for idx in range(2)] == ["skipped", "skipped"]
    with pytest.raises(RolloutDataFailure, match="prompt_idx=2") as failed:
        push(manager, 2)
    assert isinstance(failed.value.__cause__, ValueError)
    metrics = manager.stats.as_metrics()
    assert metrics["rollout/skipped_total"] == 2.0
    assert metrics["rollout/data_failures_total/ValueError"] == 3.0


def test_consecutive_dropped_prompts_end_the_run_and_a_commit_resets_the_count() -> None:
    gone = ConnectionError("gone")
    manager, _, _ = manager_of(gone, None, gone, gone, max_consecutive_dropped_prompts=1)
    assert [push(manager, idx) for idx in range(3)] == ["skipped", "committed", "skipped"]
    with pytest.raises(RolloutRedispatchExhausted, match="2 prompts in a row"):
        push(manager, 3)
    assert manager.stats.as_metrics()["rollout/max_consecutive_infra_drops"] == 2.0


@pytest.mark.parametrize("terminal", TERMINAL)
@pytest.mark.parametrize("cause", [None, ConnectionError("gone")])
def test_terminal_errors_are_neither_retried_nor_skipped(terminal: Any, cause: Any) -> None:
    error = terminal("the end")
    error.__cause__ = cause
    budgets = {"max_infra_attempts": 3, "max_data_attempts": 3}
    manager, buffer, slept = manager_of(
        error, **budgets, max_skipped_prompts=3, max_consecutive_dropped_prompts=3
    )
    with pytest.raises(terminal) as failed:
        push(manager)
    assert failed.value is error and slept == []
    assert [entry[0] for entry in buffer.log] == ["reserve", "remove"]
    assert not any(manager.stats.as_metrics().values())


def test_running_group_is_registered_with_task_and_version_until_the_commit() -> None:
    registry: dict[Any, Any] = {}
    seen: list[Any] = []

    async def look() -> None:
        seen.append({key: (task is asyncio.current_task(), v) for key, (task, v) in registry.items()})

    manager, buffer, _ = manager_of(look)
    commit = buffer.commit

    async def look_and_commit(*arguments: Any) -> None:
        await look()
        await commit(*arguments)

    buffer.commit = look_and_commit  # type: ignore[method-assign]
    manager.set_weight_version(4)
    assert push(manager, inflight_registry=registry) is RolloutOutcome.COMMITTED
    assert seen == [{0: (True, 4)}, {}]


def test_cancelled_group_removes_its_slot_and_is_not_retried() -> None:
    async def play() -> None:
        async def forever() -> None:
            await asyncio.Event().wait()

        manager, buffer, _ = manager_of(forever, max_infra_attempts=5, max_data_attempts=5)
        registry: dict[Any, Any] = {}
        sample: Any = {"idx": 0}
        pushing = asyncio.create_task(manager.generate_and_push(sample, inflight_registry=registry))
        await asyncio.sleep(0)
        registry[0][0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing
        assert [entry[0] for entry in buffer.log] == ["reserve", "remove"] and registry == {}

    asyncio.run(play())


def test_error_while_removing_a_slot_does_not_hide_the_original_error() -> None:
    manager, buffer, _ = manager_of(ValueError("the cause"))

    async def broken(group_id: int) -> None:
        raise OSError("the buffer is gone too")

    buffer.remove_group = broken  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="the cause"):
        push(manager)


def test_trainer_takes_oldest_groups_first_and_skips_stale_ones() -> None:
    async def play() -> None:
        buffer = PromptGroupBuffer(max_weight_lag=1)
        for version in (0, 2, 3):
            record = PromptGroupRecord(version, [], None, {}, [], {})
            await buffer.commit(buffer.reserve(version), record, version, version)
        taken = asyncio.create_task(buffer.take(3, weight_version=3))
        await asyncio.sleep(0)
        assert not taken.done() and buffer.stale_groups == 1
        group_id = buffer.reserve(3)
        await buffer.commit(group_id, PromptGroupRecord(9, [], None, {}, [], {}), 3, 3)
        assert [group.prompt_idx for group in await taken] == [2, 3, 9]
        with pytest.raises(KeyError, match="not reserved"):
            await buffer.commit(group_id, PromptGroupRecord(9, [], None, {}, [], {}), 3, 3)

    asyncio.run(play())
