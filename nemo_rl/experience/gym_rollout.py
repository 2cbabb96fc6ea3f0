"""Rollouts through Gym: an agent plays each row, and the tokens that the policy read and sampled come back.

Invariants: the caller's sample is not changed; the object keeps no state between calls, so groups may run
concurrently.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nemo_rl.experience.failures import RolloutDataFailure
from nemo_rl.experience.group import (
    Played,
    Sleep,
    current_group,
    described,
    finite_reward,
    members_of,
    play_members,
    playing,
)
from nemo_rl.experience.gym_dispatch import HANDLE, ROWIDX, TASK_NAME, Row, RowDispatch, merged_timings
from nemo_rl.experience.gym_metrics import gym_metrics
from nemo_rl.experience.ignored_arguments import ONLY_NATIVE, refuse_unknown
from nemo_rl.experience.interfaces import Completion, GroupIntegrity, PromptGroupRecord
from nemo_rl.experience.message_log import as_logprobs, as_token_ids, length_of
from nemo_rl.experience.retry_budgets import RolloutRetryPolicy, RolloutStats, RolloutTimeouts, within
from nemo_rl.utils.timer import Timer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedTokenizerBase

    from nemo_rl.data.interfaces import DatumSpec
    from nemo_rl.models.generation.interfaces import GenerationConfig

TIMER_PREFIX = "timing/rollout"
_NOT_FOR_GYM = ("stop_strings", "stop_token_ids", "top_k")
"""Generation settings that a row cannot carry."""
_REWARD_TOLERANCE = 1e-6
"""Allowed difference between a reward and the sum of its components, absolute or relative, for rounding."""


@dataclass(frozen=True)
class _Member:
    completion: Completion
    timing: Mapping[str, float]


class AsyncNemoGymRolloutImpl:
    """Plays the completions of one prompt through `run_rollouts` of `task_to_env["nemo_gym"]`."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        task_to_env: dict[str, Any],
        num_generations_per_prompt: int,
        max_seq_len: int,
        generation_config: GenerationConfig,
        max_rollout_turns: int | None = None,
        *,
        mask_env_flagged_samples: bool = True,
        timeouts: RolloutTimeouts | None = None,
        retry_policy: RolloutRetryPolicy | None = None,
        stats: RolloutStats | None = None,
        integrity: GroupIntegrity | None = None,
        seed: int | None = None,
        sleep: Sleep = asyncio.sleep,
        **kwargs: Any,
    ) -> None:
        refuse_unknown(AsyncNemoGymRolloutImpl, kwargs, ONLY_NATIVE)
        self.tokenizer = tokenizer
        self.task_to_env = task_to_env
        self.num_generations_per_prompt = num_generations_per_prompt
        self.max_seq_len = max_seq_len
        self.generation_config = generation_config
        self.max_rollout_turns = max_rollout_turns
        self._mask_env_flagged_samples = mask_env_flagged_samples
        self._timeouts = timeouts or RolloutTimeouts()
        self._retry_policy = retry_policy or RolloutRetryPolicy.single_attempt()
        self._stats = stats if stats is not None else RolloutStats()
        self._integrity = integrity or GroupIntegrity()
        self._seed = seed
        self._sleep = sleep
        self._validate_init_params()

    def _validate_init_params(self) -> None:
        """Refuse settings that would be ignored: the agent limits its turns, the row sets its sampling."""
        config: Mapping[str, object] = self.generation_config
        for key in _NOT_FOR_GYM:
            if config[key]:
                raise AssertionError(
                    f"generation_config[{key!r}] has no effect on the Gym path; set it to None, "
                    f"not {config[key]!r}"
                )
        if self.max_rollout_turns is not None:
            raise AssertionError(
                f"max_rollout_turns={self.max_rollout_turns} has no effect on the Gym path; leave it None "
                "and set the agent's own limit (max_steps)"
            )

    async def run_rollout(self, input_sample: DatumSpec) -> PromptGroupRecord:
        """Run num_generations_per_prompt rollouts for one prompt."""
        prompt_idx = input_sample["idx"]
        timer = Timer()
        timer.start(f"{TIMER_PREFIX}/total")
        inputs = self._build_inputs(input_sample)
        try:
            with playing(prompt_idx) as group:
                completions, metrics = await self._run_rollouts(inputs, timer, TIMER_PREFIX)
        except Exception as error:
            error.add_note(f"in the group of prompt_idx={prompt_idx}")
            raise
        timer.stop(f"{TIMER_PREFIX}/total")
        return PromptGroupRecord(
            prompt_idx=prompt_idx,
            prompt=completions[0].message_log[:1],
            extra_env_info=input_sample["extra_env_info"],
            metadata={"task_name": TASK_NAME},
            completions=completions,
            rollout_metrics=metrics | timer.get_timing_metrics("sum"),
            integrity=self._integrity,
            failures={index: described(failure) for index, failure in group.failures.items()},
        )

    def _build_inputs(self, input_sample: DatumSpec) -> list[Row]:
        """One row per completion, with the sampling settings of the configuration."""
        template: Any = _copied(input_sample["extra_env_info"])
        if not isinstance(template, dict):
            raise ValueError(
                f"prompt_idx={input_sample['idx']}: extra_env_info is {type(template).__name__}; on the Gym "
                "path it must be the row to play, a dict with responses_create_params and agent_ref"
            )
        params, config = template["responses_create_params"], self.generation_config
        limits = (params.get("max_output_tokens"), config["max_new_tokens"])
        params["temperature"] = config["temperature"]
        params["top_p"] = config["top_p"]
        params["max_output_tokens"] = min(limit for limit in limits if limit is not None)
        rows = []
        for traj_idx in range(self.num_generations_per_prompt):
            row = _copied(template)
            row[ROWIDX] = traj_idx
            if self._seed is not None:
                seed = row_seed(self._seed, input_sample["idx"], traj_idx)
                row["responses_create_params"]["seed"] = seed
            rows.append(row)
        return rows

    async def _run_rollouts(
        self, inputs: list[Row], timer: Timer, timer_prefix: str
    ) -> tuple[list[Completion], dict[str, Any]]:
        """Play the rows; returns the members in order, and their metrics."""
        agent_name = inputs[0]["agent_ref"]["name"]
        with timer.time(f"{timer_prefix}/run_rollouts"):
            if self._integrity.on_member_failure == "drop":
                completions, timing = await self._play_together(inputs, timer_prefix)
            else:
                played = await self._play_apart(inputs, timer_prefix)
                succeeded = {index: one.completion for index, one in played.results.items()}
                prompt = next(iter(succeeded.values())).message_log[:1]
                completions = members_of(succeeded, played.failures, prompt, self._integrity)
                timing = merged_timings([one.timing for one in played.results.values()], timer_prefix)
        with timer.time(f"{timer_prefix}/compute_metrics"):
            metrics = self._compute_rollout_metrics(completions, agent_name)
        if failures := current_group().failures:
            metrics["failed_members"] = len(failures)
        return completions, metrics | timing

    async def _play_together(
        self, inputs: list[Row], timer_prefix: str
    ) -> tuple[list[Completion], dict[str, float]]:
        """Play the rows in one dispatch: if a row fails, the group fails."""
        async with within(self._timeouts.rollout_s, "a Gym group"):
            delivered = await self._dispatch().play(inputs, timer_prefix)
        return [self._member(delivered.results[row[ROWIDX]], row[ROWIDX]) for row in inputs], delivered.timing

    async def _play_apart(self, inputs: list[Row], timer_prefix: str) -> Played[_Member]:
        """Play each row in its own dispatch, concurrently: if a row fails, the others go on."""
        dispatch = self._dispatch()

        async def play(index: int) -> _Member:
            async with within(self._timeouts.rollout_s, f"row {index} of a Gym group"):
                delivered = await dispatch.play([inputs[index]], timer_prefix)
            return _Member(self._member(delivered.results[index], index), delivered.timing)

        once = replace(self._integrity, member_attempts=1)  # RowDispatch does the retries
        return await play_members(play, len(inputs), once, self._retry_policy)

    def _dispatch(self) -> RowDispatch:
        if TASK_NAME not in self.task_to_env:
            known = ", ".join(map(repr, self.task_to_env)) or "none"
            raise ValueError(f"no environment for task {TASK_NAME!r}; known tasks: {known}")
        attempts = max(self._retry_policy.max_gym_row_attempts, self._integrity.member_attempts)
        handle = self.task_to_env[TASK_NAME]
        return RowDispatch(handle, self.tokenizer, self._retry_policy, attempts, self._stats, self._sleep)

    def _member(self, result: Any, index: int) -> Completion:
        completion = self._result_to_completion(result)
        completion.generation_index = index
        return completion

    def _result_to_completion(self, result: Any) -> Completion:
        """Convert a result of the handle. Tensors that have the right type are not copied."""
        if not isinstance(result, dict):
            raise AssertionError(
                f"{HANDLE} returned a result of type {type(result).__name__}; expected a dict"
            )
        full_result = result["full_result"]
        message_log = [_typed(message) for message in result["message_log"]]
        reward = _checked_reward(full_result)
        if not self._mask_env_flagged_samples:
            _remove_flags(full_result)
        tokens = length_of(message_log)
        return Completion(
            message_log=message_log,
            env_extras=full_result,
            truncated=tokens == self.max_seq_len,
            reward=reward,
            overflow_tokens=max(0, tokens - self.max_seq_len),
        )

    def _compute_rollout_metrics(self, completions: list[Completion], agent_name: str) -> dict[str, Any]:
        """Aggregate metrics over all completions that succeeded."""
        return gym_metrics(completions, agent_name)


def row_seed(seed: int, prompt_idx: int, traj_idx: int) -> int:
    """A seed that depends only on its arguments. Two rows have the same one only by rare coincidence."""
    text = f"{seed}:{prompt_idx}:{traj_idx}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) % 2**31


def _copied(value: Any) -> Any:
    """A deep copy. For plain data, which rows are, it is several times faster than `copy.deepcopy`."""
    if type(value) is dict:
        return {key: _copied(inner) for key, inner in value.items()}
    if type(value) is list:
        return [_copied(inner) for inner in value]
    return value if isinstance(value, str | int | float | None) else copy.deepcopy(value)


def _typed(message: dict[str, Any]) -> dict[str, Any]:
    typed = {**message, "token_ids": as_token_ids(message["token_ids"])}
    if message["role"] == "assistant" and "generation_logprobs" in message:
        typed["generation_logprobs"] = as_logprobs(message["generation_logprobs"])
    return typed


def _checked_reward(full_result: dict[str, Any]) -> float:
    reward = finite_reward(float(full_result["reward"]))
    components = full_result.get("reward_components")
    if isinstance(components, dict):
        numbers = [value for value in components.values() if isinstance(value, bool | int | float)]
        total = math.fsum(numbers)
        is_sum = math.isclose(total, reward, rel_tol=_REWARD_TOLERANCE, abs_tol=_REWARD_TOLERANCE)
        if len(numbers) < len(components) or not is_sum:
            raise RolloutDataFailure(
                f"reward_components {components} do not add up to the reward {reward:g}; fix the verifier"
            )
    return reward


def _remove_flags(full_result: dict[str, Any]) -> None:
    full_result.pop("mask_sample", None)
    if isinstance(full_result.get("instance_config"), dict):
        full_result["instance_config"].pop("mask_sample", None)
