"""Native rollouts: in each turn, the policy generates tokens and the environment returns an observation.

Invariants: generated tokens are never cut or tokenised again; the caller's sample is not changed; the object
keeps no state between calls, so groups may run concurrently.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.environments.environment_steps import EnvironmentDispatch
from nemo_rl.experience.failures import (
    TERMINAL,
    FailureClass,
    GenerationUnavailable,
    RolloutConfigurationError,
    RolloutDataFailure,
    classify_rollout_failure,
    ends_run,
)
from nemo_rl.experience.group import (
    Sleep,
    current_group,
    described,
    finite_reward,
    members_of,
    play_members,
    playing,
)
from nemo_rl.experience.group_metrics import native_metrics
from nemo_rl.experience.ignored_arguments import ONLY_GYM, refuse_unknown
from nemo_rl.experience.interfaces import Completion, GroupIntegrity, PromptGroupRecord
from nemo_rl.experience.message_log import as_token_ids, copied, flat_token_ids, whole_numbers
from nemo_rl.experience.retry_budgets import RolloutRetryPolicy, RolloutTimeouts, within
from nemo_rl.lazy import lazy
from nemo_rl.utils.timer import Timer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from nemo_rl.data.interfaces import DatumSpec, LLMMessageLogType
    from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn
    from nemo_rl.models.generation.interfaces import AsyncGeneration
else:
    torch = lazy("torch")

logger = logging.getLogger(__name__)

NO_TURN_LIMIT = 999999
TIMER_PREFIX = "timing/rollout"
_IDLE_TURNS = 2
"""A rollout fails after this many turns in a row without a new token, because it would never end."""

SampleMetrics = dict[str, Any]


@dataclass(slots=True)
class _Trajectory:
    """The state of one rollout while it is played."""

    message_log: LLMMessageLogType
    env_state: dict[str, Any] | None
    stop_strings: list[str] | None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    turn_count: int = 0
    idle_turns: int = 0
    env_tokens: int = 0
    overflow_tokens: int = 0
    final_metadata: dict[str, Any] | None = None
    turn_gen_tokens: list[int] = field(default_factory=list)
    turn_input_tokens: list[int] = field(default_factory=list)
    per_worker_token_counts: dict[int, int] = field(default_factory=dict)

    def add_turn(self, message: dict[str, Any], input_length: int, gen_metrics: dict[str, Any]) -> None:
        """Add the message that the policy generated."""
        generated = message["token_ids"].numel()
        self.message_log.append(message)
        self.turn_gen_tokens.append(generated)
        self.turn_input_tokens.append(input_length)
        self.truncated = self.truncated or bool(gen_metrics.get("_response_truncated", False))
        worker = gen_metrics.get("gen_leader_worker_idx")
        if worker is not None:
            counts = self.per_worker_token_counts
            counts[worker] = counts.get(worker, 0) + generated

    def add_observation(self, observation: dict[str, str], token_ids: torch.Tensor, max_seq_len: int) -> None:
        """Add the observation, cut to the room that is left."""
        room = max_seq_len - self.turn_input_tokens[-1] - self.turn_gen_tokens[-1]
        observed = token_ids.numel()
        if observed >= room:  # an exact fit counts as truncation, although nothing is cut
            kept = max(0, room)
            self.overflow_tokens += max(0, observed - kept)
            token_ids, observed, self.truncated = token_ids[:kept], min(observed, kept), True
        self.env_tokens += observed
        self.message_log.append(
            {"role": observation["role"], "content": observation["content"], "token_ids": token_ids}
        )
        is_idle = not self.turn_gen_tokens[-1] and not observed
        self.idle_turns = self.idle_turns + 1 if is_idle else 0

    @property
    def is_over(self) -> bool:
        return self.terminated or self.truncated

    def completion(self, traj_idx: int) -> Completion:
        return Completion(
            message_log=self.message_log,
            env_extras=self.env_state,
            truncated=self.truncated,
            reward=self.reward,
            overflow_tokens=self.overflow_tokens,
            final_metadata=self.final_metadata,
            generation_index=traj_idx,
        )

    def metrics(self, max_rollout_turns: int) -> SampleMetrics:
        generated = sum(self.turn_gen_tokens)
        return {
            "turn_count": self.turn_count,
            "total_tokens": generated + self.env_tokens,
            "assistant_tokens": generated,
            "env_tokens": self.env_tokens,
            "terminated": self.terminated,
            "max_turns_reached": self.turn_count == max_rollout_turns,
            "turn_gen_tokens": self.turn_gen_tokens,
            "turn_input_tokens": self.turn_input_tokens,
            "turn_total_tokens": [
                given + new for given, new in zip(self.turn_input_tokens, self.turn_gen_tokens, strict=True)
            ],
            "per_worker_token_counts": self.per_worker_token_counts,
        }


class AsyncRolloutImpl:
    """Plays the completions of one prompt concurrently, with `generate_async` of a backend."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        task_to_env: dict[str, EnvironmentInterface[Any]],
        num_generations_per_prompt: int,
        max_seq_len: int,
        policy_generation: AsyncGeneration,
        max_rollout_turns: int = NO_TURN_LIMIT,
        *,
        timeouts: RolloutTimeouts | None = None,
        integrity: GroupIntegrity | None = None,
        retry_policy: RolloutRetryPolicy | None = None,
        seed: int | None = None,
        env_concurrency: int = 1,
        sleep: Sleep = asyncio.sleep,
        **kwargs: Any,
    ) -> None:
        refuse_unknown(AsyncRolloutImpl, kwargs, ONLY_GYM)
        self.tokenizer = tokenizer
        self.task_to_env = task_to_env
        self.num_generations_per_prompt = num_generations_per_prompt
        self.max_seq_len = max_seq_len
        self.policy_generation = policy_generation
        self.max_rollout_turns = max_rollout_turns
        self._timeouts = timeouts or RolloutTimeouts()
        self._integrity = integrity or GroupIntegrity()
        self._retry_policy = retry_policy or RolloutRetryPolicy.single_attempt()
        self._seed = seed
        self._sleep = sleep
        self._has_warned = False
        self._environments = EnvironmentDispatch(
            task_to_env, env_concurrency, step_limit_s=self._timeouts.env_s
        )

    async def run_rollout(self, input_sample: DatumSpec) -> PromptGroupRecord:
        """Run num_generations_per_prompt rollouts for one prompt."""
        task_name, prompt_idx = input_sample["task_name"], input_sample["idx"]
        _check_prompt(input_sample["message_log"], prompt_idx)
        timer = Timer()
        timer.start(f"{TIMER_PREFIX}/total")
        with timer.time(f"{TIMER_PREFIX}/run_rollouts"), playing(prompt_idx):
            async with within(self._timeouts.rollout_s, f"the group of prompt_idx={prompt_idx}"):
                played = await play_members(
                    lambda traj_idx: self._run_single_rollout(input_sample, traj_idx),
                    self.num_generations_per_prompt,
                    self._integrity,
                    self._retry_policy,
                    sleep=self._sleep,
                )
        with timer.time(f"{TIMER_PREFIX}/aggregate_metrics"):
            metrics = self._aggregate_rollout_metrics(
                [completion for completion, _ in played.results.values()],
                [sample for _, sample in played.results.values()],
            )
        timer.stop(f"{TIMER_PREFIX}/total")
        succeeded = {index: completion for index, (completion, _) in played.results.items()}
        if played.failures:
            metrics["failed_members"] = len(played.failures)
        return PromptGroupRecord(
            prompt_idx=prompt_idx,
            prompt=input_sample["message_log"],
            extra_env_info=input_sample["extra_env_info"],
            metadata={"task_name": task_name},
            completions=members_of(succeeded, played.failures, input_sample["message_log"], self._integrity),
            rollout_metrics=metrics | timer.get_timing_metrics("sum"),
            integrity=self._integrity,
            failures={index: described(failure) for index, failure in played.failures.items()},
        )

    async def _run_single_rollout(
        self, input_sample: DatumSpec, traj_idx: int
    ) -> tuple[Completion, SampleMetrics]:
        """Run one multi-turn rollout for a single generation index."""
        trajectory = _Trajectory(
            message_log=copied(input_sample["message_log"]),
            env_state=copy.deepcopy(input_sample["extra_env_info"]),
            stop_strings=input_sample.get("stop_strings"),
        )
        rollout_label = f"prompt_idx={input_sample['idx']} traj_idx={traj_idx}"
        while not self._is_over(trajectory):
            trajectory.turn_count += 1
            seed = self._turn_seed(input_sample["idx"], traj_idx, trajectory.turn_count)
            await self._generate_turn(trajectory, seed, rollout_label)
            await self._step_environment(trajectory, input_sample["task_name"], rollout_label)
            if trajectory.idle_turns >= _IDLE_TURNS and not self._is_over(trajectory):
                raise RolloutDataFailure(
                    f"{rollout_label}: {_IDLE_TURNS} turns in a row added no token: the policy generated "
                    "none and the observations were empty; the environment should end such a rollout"
                )
        return trajectory.completion(traj_idx), trajectory.metrics(self.max_rollout_turns)

    def _is_over(self, trajectory: _Trajectory) -> bool:
        return trajectory.is_over or trajectory.turn_count >= self.max_rollout_turns

    async def _generate_turn(self, trajectory: _Trajectory, seed: int | None, rollout_label: str) -> None:
        seeded = {} if seed is None else {"seed": seed}  # a subclass's method may not take a seed
        try:
            async with within(self._timeouts.generation_s, f"{rollout_label}: a turn's generation"):
                message, input_lengths, gen_metrics = await self._generate_response(
                    trajectory.message_log, trajectory.stop_strings, **seeded
                )
        except TERMINAL:
            raise
        except Exception as error:  # the boundary to the backend: becomes a failure of the rollout
            raise _generation_failure(error, rollout_label) from error
        trajectory.add_turn(message, int(input_lengths.item()), gen_metrics)

    async def _generate_response(
        self, message_log: LLMMessageLogType, stop_strings: list[str] | None, *, seed: int | None = None
    ) -> tuple[dict[str, Any], torch.Tensor, dict[str, Any]]:
        """Generate one turn; returns the assistant's message, the input length and the backend's metrics."""
        input_ids = flat_token_ids(message_log)
        input_length = input_ids.numel()
        input_lengths = whole_numbers([input_length], torch.int32)
        data: BatchedDataDict[Any] = BatchedDataDict(
            input_ids=input_ids.unsqueeze(0),
            input_lengths=input_lengths,
            stop_strings=[None if stop_strings is None else list(stop_strings)],
        )
        if seed is not None:
            data["seeds"] = [seed]
        output: Any = None
        async for _, latest in self.policy_generation.generate_async(data):
            output = latest
        if output is None:
            raise GenerationUnavailable("the backend returned no output")
        count = _first(output["unpadded_sequence_lengths"]) - input_length
        token_ids = _generated(output["output_ids"], input_length, count)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=True),
            "token_ids": token_ids,
        }
        if "logprobs" in output:
            message["generation_logprobs"] = _checked_logprobs(
                _generated(output["logprobs"], input_length, count)
            )
        else:
            self._warn_untrainable()
        if "routed_experts" in output:  # [tokens, layers, topk], for learners that route as the sampler did
            message["routed_experts"] = _generated(output["routed_experts"], input_length, count)
        return message, input_lengths, _generation_metrics(output)

    async def _step_environment(self, trajectory: _Trajectory, task_name: str, rollout_label: str) -> None:
        try:
            step = await self._environments.step(
                [task_name], [trajectory.message_log], [trajectory.env_state]
            )
        except Exception as error:
            error.add_note(f"in the environment's step for {rollout_label}")
            raise
        if not isinstance(step.rewards, torch.Tensor):
            raise AssertionError(
                f"the environment of task {task_name!r} returned rewards of type "
                f"{type(step.rewards).__name__}; expected one reward per row, a tensor [B]"
            )
        trajectory.reward += finite_reward(float(_first(step.rewards)), rollout_label)
        trajectory.terminated = bool(_first(step.terminateds))
        trajectory.final_metadata = step.metadata[0]
        observation = step.observations[0]
        token_ids = self._tokenized(observation["content"])
        trajectory.add_observation(observation, token_ids, self.max_seq_len)
        _prepare_next_turn(trajectory, step)

    def _warn_untrainable(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: the backend returns no log-probabilities, so its generations cannot be trained on",
                current_group(),
            )

    def _tokenized(self, text: str) -> torch.Tensor:
        """The tokens of raw text, without a chat template or special tokens."""
        encoded: Any = self.tokenizer(text, add_special_tokens=False)
        ids = encoded["input_ids"] if isinstance(encoded, dict) else encoded.input_ids
        return as_token_ids(ids)

    def _turn_seed(self, prompt_idx: int, traj_idx: int, turn: int) -> int | None:
        """A seed that depends only on the run's seed and the arguments; None if the run has no seed."""
        if self._seed is None:
            return None
        text = f"{self._seed}:{prompt_idx}:{traj_idx}:{turn}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1

    def _aggregate_rollout_metrics(
        self, completions: list[Completion], all_sample_metrics: list[SampleMetrics]
    ) -> dict[str, Any]:
        """Aggregate per-sample metrics across all completions."""
        return native_metrics(completions, all_sample_metrics)


def _check_prompt(message_log: LLMMessageLogType, prompt_idx: int) -> None:
    for position, message in enumerate(message_log):
        ids = message["token_ids"]
        if not isinstance(ids, torch.Tensor) or ids.dim() != 1 or (ids.is_floating_point() and ids.numel()):
            raise ValueError(
                f"prompt_idx={prompt_idx}: token_ids of message {position} in message_log must be a 1-D "
                "integer tensor, for example torch.tensor(ids, dtype=torch.int64)"
            )


def _prepare_next_turn(trajectory: _Trajectory, step: EnvironmentReturn[Any]) -> None:
    """Take the stop strings and the state for the next turn from a step, unless the rollout is over."""
    if trajectory.is_over:
        return
    stops = step.next_stop_strings[0] if step.next_stop_strings is not None else None
    if stops is not None:
        trajectory.stop_strings = stops
    if step.metadata[0] is not None:
        trajectory.env_state = step.metadata[0]


def _first(values: Any) -> Any:
    """The value of the first row as a plain number. `tolist` is five times faster than indexing a tensor."""
    return values.tolist()[0] if isinstance(values, torch.Tensor) else values[0]


def _generated(sequences: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """The generated part of the first row. A copy, so that the whole sequence can be freed."""
    sequence = sequences[0]
    if not 0 <= count <= sequence.shape[0] - start:
        raise RuntimeError(
            f"the backend returned unpadded_sequence_lengths of {start + count}, which does not fit an input "
            f"of {start} tokens and an output of {sequence.shape[0]} tokens"
        )
    return sequence.narrow_copy(0, start, count)


def _checked_logprobs(logprobs: torch.Tensor) -> torch.Tensor:
    if math.isnan(sum(logprobs.tolist())):
        raise RuntimeError("the backend returned NaN as a log-probability")
    return logprobs


def _generation_metrics(output: BatchedDataDict[Any]) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    if "gen_leader_worker_idx" in output:
        worker = output["gen_leader_worker_idx"][0]
        metrics["gen_leader_worker_idx"] = int(worker[0] if isinstance(worker, list | tuple) else worker)
    if "truncated" in output:
        metrics["_response_truncated"] = output["truncated"][0]
    return metrics


def _generation_failure(error: Exception, rollout_label: str) -> RuntimeError:
    text = f"{rollout_label}: generation failed: {described(error)}"
    if ends_run(error):
        return RolloutConfigurationError(text)
    if classify_rollout_failure(error) is FailureClass.INFRA:
        return GenerationUnavailable(text)
    return RolloutDataFailure(text)
