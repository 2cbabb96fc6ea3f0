"""Copying a word: the prompts, and the environment that checks the copies.

The words are invented from syllables, so the model has not seen them. Held-out words are never trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from nemo_gym.errors import ConfigError
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from nemo_rl.data.interfaces import DatumSpec, LLMMessageLogType
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

TASK_NAME = "copying"
STOP = "\n"
_CONSONANTS, _VOWELS, _ENDINGS = "bdfgklmnprstvz", "aeiou", ("", "l", "n", "r", "s")
_WORKED_EXAMPLES = ("polan", "keri")
"""The worked examples of every prompt. They are never used as tasks."""


@dataclass(frozen=True)
class Words:
    """Disjoint sets of words."""

    training: list[str]
    heldout: list[str]


def words(seed: int, *, training: int, heldout: int) -> Words:
    """This many words of each set, the same for the same seed."""
    syllables = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
    made_up = {a + b + end for a in syllables for b in syllables for end in _ENDINGS}
    everything = sorted(made_up - {*_WORKED_EXAMPLES})
    if training + heldout > len(everything):
        raise ConfigError(
            f"the plan needs {training + heldout} different words, but only {len(everything)} are available; "
            "use fewer steps, prompts per step or held-out tasks"
        )
    chosen = Random(seed).sample(everything, training + heldout)
    return Words(training=chosen[heldout:], heldout=chosen[:heldout])


def prompt(word: str) -> str:
    examples = "".join(f"Word: {one}\nCopy: {one}\n\n" for one in _WORKED_EXAMPLES)
    return f"{examples}Word: {word}\nCopy:"


def datum(word: str, idx: int, tokenizer: PreTrainedTokenizerBase) -> DatumSpec:
    """A prompt for the rollout manager."""
    text = prompt(word)
    token_ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=torch.int64)
    return {
        "message_log": [{"role": "user", "content": text, "token_ids": token_ids}],
        "length": len(token_ids),
        "extra_env_info": {"word": word},
        "loss_multiplier": 1.0,
        "idx": idx,
        "task_name": TASK_NAME,
        "stop_strings": [STOP],
    }


def is_copy(answer: str, word: str) -> bool:
    """Whether the first line of an answer is exactly the word. The line must end with a newline."""
    line, end, _ = answer.partition(STOP)
    return bool(end) and line.strip() == word


class CopyingEnvironment(EnvironmentInterface[dict[str, Any]]):
    """One turn; reward 1 for a copy, else 0."""

    def step(
        self, message_log_batch: list[LLMMessageLogType], metadata: list[dict[str, Any]]
    ) -> EnvironmentReturn[dict[str, Any]]:
        answers = [str(log[-1]["content"]) for log in message_log_batch]
        rewards = [
            float(is_copy(answer, state["word"])) for answer, state in zip(answers, metadata, strict=True)
        ]
        return EnvironmentReturn[dict[str, Any]](
            observations=[{"role": "environment", "content": ""} for _ in answers],
            metadata=[None for _ in answers],
            next_stop_strings=None,
            rewards=torch.tensor(rewards),
            terminateds=torch.ones(len(answers), dtype=torch.bool),
            answers=[answer.strip() for answer in answers],
        )

    def global_post_process_and_metrics(
        self, batch: BatchedDataDict[Any]
    ) -> tuple[BatchedDataDict[Any], dict[str, Any]]:
        return batch, {}
