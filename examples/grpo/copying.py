"""GRPO on copying a word: one turn, native rollouts, the learner's own model generates.

python -m examples.grpo.copying
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from examples.grpo.command import Tell, Variant, main
from examples.grpo.learner import Learner, LearnerSettings, UpdateReport
from examples.grpo.training import Plan, Prompts, train
from examples.grpo.words import TASK_NAME, CopyingEnvironment, datum, words
from nemo_rl.experience.rollout_manager import RolloutManager
from nemo_rl.models.generation.transformers_generation import TransformersGeneration
from nemo_rl.models.weights import Policy, load_policy

if TYPE_CHECKING:
    from examples.grpo.reporting import RunReport
    from nemo_rl.experience.interfaces import PromptGroupRecord
    from nemo_rl.models.generation.interfaces import GenerationConfig

MAX_SEQ_LEN = 64
GENERATION: GenerationConfig = {
    "backend": "transformers",
    "max_new_tokens": 10,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": None,
    "stop_token_ids": None,
    "stop_strings": None,
}


class NativeArena:
    """The learner's model samples too: an update changes it in place, and nothing is handed over."""

    def __init__(self, policy: Policy, generation: TransformersGeneration) -> None:
        self._policy = policy
        self._generation = generation
        self._environment = CopyingEnvironment()

    def manager(self, group_size: int, seed: int) -> RolloutManager:
        return RolloutManager(
            self._policy.tokenizer,
            {TASK_NAME: self._environment},
            group_size,
            MAX_SEQ_LEN,
            max_rollout_turns=1,
            policy_generation=self._generation,
            seed=seed,
        )

    async def refit(self, version: int) -> None:
        pass

    async def learn(self, learner: Learner, records: Sequence[PromptGroupRecord]) -> UpdateReport:
        with self._generation.paused():
            return await asyncio.to_thread(learner.update, records)

    def generating_s(self) -> float:
        return float(self._generation.get_logger_metrics()["busy_s"])


async def play(plan: Plan, settings: LearnerSettings, report: RunReport, tell: Tell) -> None:
    began = time.perf_counter()
    policy = load_policy()
    chosen = words(report.seed, training=plan.training_tasks, heldout=plan.heldout_tasks)
    prompts = Prompts(
        training=[datum(word, idx, policy.tokenizer) for idx, word in enumerate(chosen.training)],
        heldout=[datum(word, idx, policy.tokenizer) for idx, word in enumerate(chosen.heldout)],
    )
    report.seconds["loading"] = time.perf_counter() - began
    with TransformersGeneration(
        policy.model, policy.tokenizer, GENERATION, max_model_len=MAX_SEQ_LEN, max_batch_size=64
    ) as generation:
        arena, learner = NativeArena(policy, generation), Learner(policy.model, settings)
        await train(arena, learner, plan, prompts, report, tell)


VARIANT = Variant(
    name="copying",
    title="copying a word, native rollouts",
    plan=Plan(steps=25, prompts_per_step=8, group_size=8, heldout_tasks=100, heldout_samples=2),
    learner=LearnerSettings(learning_rate=5e-6),
    play=play,
)

if __name__ == "__main__":
    main(VARIANT)
