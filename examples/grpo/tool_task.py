"""GRPO on using a calculator: several turns, through Gym, with the local engine serving the policy.

After each update the learner's weights are exported as F16 and the engine loads them.

python -m examples.grpo.tool_task
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.grpo.command import Tell, Variant, main
from examples.grpo.learner import Learner, LearnerSettings, UpdateReport
from examples.grpo.questions import datum, questions
from examples.grpo.training import Plan, Prompts, train
from nemo_rl.environments.nemo_gym import NemoGym
from nemo_rl.experience.rollout_manager import RolloutManager
from nemo_rl.models.weights import Policy, export_gguf, load_policy

if TYPE_CHECKING:
    from examples.grpo.reporting import RunReport
    from nemo_rl.experience.interfaces import PromptGroupRecord
    from nemo_rl.models.generation.interfaces import GenerationConfig

ROOT = Path(__file__).parents[2]
CONFIGS = [
    ROOT / "resources_servers/calculator/configs/calculator.yaml",
    ROOT / "responses_api_models/local_model/configs/local_model_for_rl.yaml",
]
MODEL_SERVER = "policy_model"
MAX_SEQ_LEN = 512
SLOTS = 4
GENERATION: GenerationConfig = {
    "backend": "nemo_gym",
    "max_new_tokens": 40,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": None,
    "stop_token_ids": None,
    "stop_strings": None,
}


class GymArena:
    """The engine samples with what was last exported to it."""

    def __init__(self, policy: Policy, gym: NemoGym, weights: Path) -> None:
        self._policy = policy
        self._gym = gym
        self._weights = weights

    def manager(self, group_size: int, seed: int) -> RolloutManager:
        environments: Any = {"nemo_gym": self._gym}  # a handle, in the place of an environment
        return RolloutManager(
            self._policy.tokenizer,
            environments,
            group_size,
            MAX_SEQ_LEN,
            generation_config=GENERATION,
            use_nemo_gym=True,
            seed=seed,
        )

    async def refit(self, version: int) -> None:
        await asyncio.to_thread(export_gguf, self._policy, self._weights)
        await self._gym.load_weights(MODEL_SERVER, self._weights, version)

    async def learn(self, learner: Learner, records: Sequence[PromptGroupRecord]) -> UpdateReport:
        return await asyncio.to_thread(learner.update, records)

    def generating_s(self) -> None:
        return None


def overrides() -> dict[str, object]:
    return {
        MODEL_SERVER: {
            "responses_api_models": {"local_model": {"slots": SLOTS, "context": MAX_SEQ_LEN}},
        }
    }


async def play(plan: Plan, settings: LearnerSettings, report: RunReport, tell: Tell) -> None:
    began = time.perf_counter()
    policy = load_policy()
    chosen = questions(report.seed, training=plan.training_tasks, heldout=plan.heldout_tasks)
    prompts = Prompts(
        training=[datum(question, idx) for idx, question in enumerate(chosen.training)],
        heldout=[datum(question, idx) for idx, question in enumerate(chosen.heldout)],
    )
    with tempfile.TemporaryDirectory(prefix="grpo_") as folder:
        async with NemoGym(CONFIGS, overrides(), max_concurrent_rows=2 * SLOTS) as gym:
            report.seconds["loading"] = time.perf_counter() - began
            arena = GymArena(policy, gym, Path(folder) / "policy.gguf")
            await train(arena, Learner(policy.model, settings), plan, prompts, report, tell)


VARIANT = Variant(
    name="tool_task",
    title="using a calculator, rollouts through Gym",
    plan=Plan(steps=10, prompts_per_step=4, group_size=8, heldout_tasks=100, heldout_samples=1),
    learner=LearnerSettings(learning_rate=1e-5, is_float16_served=True),
    play=play,
    seeds=(0, 1, 2),
)

if __name__ == "__main__":
    main(VARIANT)
