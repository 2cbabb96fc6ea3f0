"""Native groups with a scripted policy and environment."""

import asyncio
from typing import Any

import torch

from nemo_rl.experience.interfaces import PromptGroupRecord
from nemo_rl.experience.native_rollout import AsyncRolloutImpl
from nemo_rl.experience.rollout_manager import RolloutManager
from tests.support.scripted_policy import ScriptedEnvironment, ScriptedGeneration, Step, Turn
from tests.support.toy_tokenizer import ToyTokenizer


def message(role: str, *token_ids: int) -> dict[str, Any]:
    text = " ".join(map(str, token_ids))
    return {"role": role, "content": text, "token_ids": torch.tensor(token_ids, dtype=torch.int64)}


def sample(*prompt: int, idx: int = 0, **more: Any) -> Any:
    log = [message("user", *(prompt or (11, 12, 13)))]
    given = {"message_log": log, "length": len(prompt), "extra_env_info": {"step": 0}, "idx": idx}
    return {**given, "loss_multiplier": 1.0, "task_name": "toy", **more}


def rollouts(
    policy: Any, environment: Any, n: int = 1, max_seq_len: int = 16, **more: Any
) -> AsyncRolloutImpl:
    tokenizer: Any = ToyTokenizer()
    return AsyncRolloutImpl(tokenizer, {"toy": environment}, n, max_seq_len, policy, **more)


def managed(policy: Any, environment: Any, n: int = 1, **more: Any) -> RolloutManager:
    tokenizer: Any = ToyTokenizer()
    return RolloutManager(tokenizer, {"toy": environment}, n, 16, policy_generation=policy, **more)


def run(
    script: list[list[Turn]], steps: list[Step], given: Any = None, with_logprobs: bool = True, **more: Any
) -> tuple[PromptGroupRecord, ScriptedGeneration, ScriptedEnvironment]:
    policy, environment = ScriptedGeneration(script, with_logprobs), ScriptedEnvironment(steps)
    impl = rollouts(policy, environment, len(script), **more)
    return asyncio.run(impl.run_rollout(given or sample())), policy, environment


def tokens(record: PromptGroupRecord, index: int = 0) -> list[list[int]]:
    return [entry["token_ids"].tolist() for entry in record.completions[index].message_log]
