"""`RolloutManager`: plays the group of one prompt, natively or through Gym, and puts groups into a buffer."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from nemo_rl.experience.failures import (
    TERMINAL,
    FailureClass,
    RolloutDataFailure,
    RolloutRedispatchExhausted,
    classify_rollout_failure,
)
from nemo_rl.experience.group import Sleep, described
from nemo_rl.experience.gym_rollout import AsyncNemoGymRolloutImpl
from nemo_rl.experience.interfaces import GroupBuffer, GroupIntegrity, PromptGroupRecord
from nemo_rl.experience.native_rollout import NO_TURN_LIMIT, AsyncRolloutImpl
from nemo_rl.experience.retry_budgets import RolloutRetryPolicy, RolloutStats, RolloutTimeouts
from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as TokenizerType

    from nemo_rl.data.interfaces import DatumSpec
    from nemo_rl.environments.interfaces import EnvironmentInterface
    from nemo_rl.models.generation.interfaces import AsyncGeneration, GenerationConfig

__all__ = [
    "AsyncNemoGymRolloutImpl",
    "AsyncRolloutImpl",
    "RolloutManager",
    "RolloutOutcome",
    "TokenizerType",
]

logger = logging.getLogger(__name__)

InflightRegistry = MutableMapping[Any, tuple["asyncio.Task[Any] | None", int]]
"""Group id → the task that generates the group, and the weight version it began with."""


class RolloutOutcome(StrEnum):
    """How `generate_and_push` ended for a prompt."""

    COMMITTED = "committed"
    SKIPPED = "skipped"


@dataclass
class _Failures:
    """Failed attempts of one prompt."""

    infra: int = 0
    data: int = 0


class RolloutManager:
    """Routes to AsyncRolloutImpl (native) or AsyncNemoGymRolloutImpl (Gym)."""

    def __init__(
        self,
        tokenizer: TokenizerType,
        task_to_env: dict[str, EnvironmentInterface[Any]],
        num_generations_per_prompt: int,
        max_seq_len: int,
        max_rollout_turns: int | None = None,
        policy_generation: AsyncGeneration | None = None,
        generation_config: GenerationConfig | None = None,
        use_nemo_gym: bool = False,
        *,
        buffer: GroupBuffer | None = None,
        retry_policy: RolloutRetryPolicy | None = None,
        timeouts: RolloutTimeouts | None = None,
        integrity: GroupIntegrity | None = None,
        seed: int | None = None,
        mask_env_flagged_samples: bool = True,
        env_concurrency: int = 1,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        if num_generations_per_prompt < 1:
            raise AssertionError(f"num_generations_per_prompt must be >= 1, not {num_generations_per_prompt}")
        if not use_nemo_gym and policy_generation is None:
            raise AssertionError("policy_generation is required for native rollouts")
        if use_nemo_gym and generation_config is None:
            raise AssertionError("generation_config is required for rollouts through NeMo Gym")
        if not use_nemo_gym and max_rollout_turns is None:
            max_rollout_turns = NO_TURN_LIMIT
        self.stats = RolloutStats()
        self._buffer = buffer
        self._retry_policy = retry_policy or RolloutRetryPolicy.single_attempt()
        self._sleep = sleep
        self._weight_version = 0
        implementation: Any = AsyncNemoGymRolloutImpl if use_nemo_gym else AsyncRolloutImpl
        self._impl: AsyncRolloutImpl | AsyncNemoGymRolloutImpl = implementation(
            tokenizer=tokenizer,
            task_to_env=task_to_env,
            num_generations_per_prompt=num_generations_per_prompt,
            max_seq_len=max_seq_len,
            max_rollout_turns=max_rollout_turns,
            policy_generation=policy_generation,
            generation_config=generation_config,
            retry_policy=self._retry_policy,
            timeouts=timeouts,
            integrity=integrity,
            seed=seed,
            mask_env_flagged_samples=mask_env_flagged_samples,
            env_concurrency=env_concurrency,
            stats=self.stats,
            sleep=sleep,
        )

    @property
    def weight_version(self) -> int:
        return self._weight_version

    def set_weight_version(self, version: int) -> None:
        """Set the version that groups are marked with when they begin and when they end."""
        self._weight_version = version

    async def run_rollout(self, input_sample: DatumSpec) -> PromptGroupRecord:
        """Run num_generations_per_prompt rollouts for one prompt."""
        began = self._weight_version
        record = await self._impl.run_rollout(input_sample)
        if isinstance(record, PromptGroupRecord):  # a custom implementation may return another type
            record.weight_versions = (began, self._weight_version)
        return record

    async def generate_and_push(
        self,
        input_sample: DatumSpec,
        *,
        target_step: int | None = None,
        inflight_registry: InflightRegistry | None = None,
    ) -> RolloutOutcome:
        """Play a prompt until its group is in the buffer or its retry budgets are used up."""
        if self._buffer is None:
            raise AssertionError("generate_and_push needs a buffer: RolloutManager(…, buffer=…)")
        failures = _Failures()
        while True:
            try:
                await self._push_once(self._buffer, input_sample, target_step, inflight_registry)
            except TERMINAL:
                raise
            except Exception as error:  # the boundary of an attempt: the retry policy decides
                if classify_rollout_failure(error) is FailureClass.INFRA:
                    is_dropped = await self._after_infra_failure(error, failures, input_sample["idx"])
                else:
                    is_dropped = self._after_data_failure(error, failures, input_sample["idx"])
                if is_dropped:
                    return RolloutOutcome.SKIPPED
            else:
                self.stats.commit()
                return RolloutOutcome.COMMITTED

    async def _push_once(
        self,
        buffer: GroupBuffer,
        input_sample: DatumSpec,
        target_step: int | None,
        inflight_registry: InflightRegistry | None,
    ) -> None:
        began = self._weight_version
        group_id = buffer.reserve(began, target_step)
        if inspect.isawaitable(group_id):
            group_id = await group_id
        registry = {} if inflight_registry is None else inflight_registry
        try:
            registry[group_id] = (asyncio.current_task(), began)
            try:
                record = await self.run_rollout(input_sample)
            finally:
                registry.pop(group_id, None)
            await buffer.commit(group_id, record, began, self._weight_version)
        except BaseException:
            await _remove_slot(buffer, group_id)
            raise

    async def _after_infra_failure(self, error: Exception, failures: _Failures, prompt_idx: int) -> bool:
        """Wait before the next attempt; returns True if the prompt is dropped."""
        policy, name = self._retry_policy, type(error).__name__
        failures.infra += 1
        if failures.infra < policy.max_infra_attempts:
            self.stats.redispatches[name] += 1
            logger.warning(
                "prompt_idx=%s: infrastructure failure %d, retrying: %s",
                prompt_idx,
                failures.infra,
                described(error),
            )
            await self._sleep(policy.backoff_s(failures.infra))
            return False
        self.stats.drop(name)
        in_a_row = self.stats.consecutive_infra_drops
        if in_a_row > policy.max_consecutive_dropped_prompts:
            raise RolloutRedispatchExhausted(
                f"dropped {in_a_row} prompts in a row because of infrastructure failures "
                f"(max_consecutive_dropped_prompts={policy.max_consecutive_dropped_prompts}); check the "
                f"backend and the servers. Last failure: prompt_idx={prompt_idx}: {described(error)}"
            ) from error
        logger.error(
            "prompt_idx=%s: dropped after %d infrastructure failures: %s",
            prompt_idx,
            failures.infra,
            described(error),
        )
        return True

    def _after_data_failure(self, error: Exception, failures: _Failures, prompt_idx: int) -> bool:
        """Returns True if the prompt is skipped; raises if too many prompts were skipped before."""
        policy, name = self._retry_policy, type(error).__name__
        failures.data += 1
        if failures.data < policy.max_data_attempts:
            self.stats.data_retries[name] += 1
            logger.warning(
                "prompt_idx=%s: data failure %d, retrying: %s", prompt_idx, failures.data, described(error)
            )
            return False
        self.stats.data_failures[name] += 1
        if self.stats.skipped < policy.max_skipped_prompts:
            self.stats.skipped += 1
            logger.error(
                "prompt_idx=%s: skipped after %d data failures: %s",
                prompt_idx,
                failures.data,
                described(error),
            )
            return True
        if policy.max_skipped_prompts == 0:
            raise error
        raise RolloutDataFailure(
            f"prompt_idx={prompt_idx} failed, and skipping it would exceed "
            f"max_skipped_prompts={policy.max_skipped_prompts} ({self.stats.skipped} skipped so far): "
            f"{described(error)}"
        ) from error


async def _remove_slot(buffer: GroupBuffer, group_id: Any) -> None:
    try:
        await buffer.remove_group(group_id)
    except Exception:  # the boundary of the cleanup: the caller raises the original error
        logger.exception("cannot remove group %s from the buffer", group_id)


def __getattr__(name: str) -> Any:
    if name == "TokenizerType":
        return lazy("transformers").PreTrainedTokenizerBase
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
