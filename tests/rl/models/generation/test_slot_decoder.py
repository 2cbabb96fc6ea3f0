import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from nemo_rl.models.generation.inference import generating
from nemo_rl.models.generation.slot_decoder import SlotDecoder, common_length
from tests.support.tiny_models import tiny_gpt2, tiny_llama

pytestmark = pytest.mark.torch

LLAMA = tiny_llama()
GPT2 = tiny_gpt2()
TOKENS = st.lists(st.integers(4, 6), max_size=12)


class Rows:
    """Sequences in a decoder. Each step is compared with a pass over each whole sequence."""

    def __init__(self, model: PreTrainedModel, max_rows: int = 4) -> None:
        self.model = model
        self.decoder = SlotDecoder(model, max_rows=max_rows, max_model_len=128)
        self.sequences: list[list[int]] = []

    def join(self, *prompts: list[int]) -> None:
        self.decoder.join(prompts)
        self.sequences += [list(prompt) for prompt in prompts]

    def step(self, next_tokens: list[int]) -> None:
        logits = self.decoder.step([sequence[-1] for sequence in self.sequences])
        for sequence, own, token in zip(self.sequences, logits, next_tokens, strict=False):
            ids = torch.tensor([sequence])
            whole = self.model(ids, attention_mask=torch.ones_like(ids)).logits[0, -1]
            torch.testing.assert_close(own.log_softmax(-1), whole.log_softmax(-1), atol=1e-4, rtol=0)
            sequence.append(token)

    def leave(self, row: int) -> list[int]:
        self.decoder.leave(row)
        left = self.sequences[row]
        self.sequences[row] = self.sequences[-1]
        self.sequences.pop()
        return left


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(["llama", "gpt2"]))
def test_rows_that_join_and_leave_get_the_logits_of_their_own_sequence(
    chance: random.Random, family: str
) -> None:
    model = LLAMA if family == "llama" else GPT2
    rows, past = Rows(model), [[4]]
    with generating(model):
        for _ in range(12):
            free = rows.decoder.max_rows - rows.decoder.rows
            prompts = [extend_prefix(chance.choice(past), chance) for _ in range(chance.randint(0, free))]
            past += prompts
            rows.join(*prompts)
            if rows.sequences:
                rows.step([chance.randint(4, 9) for _ in rows.sequences])
            for _ in range(chance.randint(0, len(rows.sequences))):
                past.append(rows.leave(chance.randrange(len(rows.sequences))))
            if chance.random() < 0.1:
                rows.decoder.forget()


def extend_prefix(earlier: list[int], chance: random.Random) -> list[int]:
    """A prompt that shares a prefix with an earlier sequence, as siblings and later turns do."""
    kept = earlier[: chance.choice([0, len(earlier) // 2, len(earlier)])][:60]
    return [*kept, *(chance.randint(4, 63) for _ in range(chance.randint(0 if kept else 1, 20)))]


def test_siblings_compute_their_prompt_once() -> None:
    rows = Rows(LLAMA)
    prompt = list(range(4, 44))
    with generating(LLAMA):
        rows.join(prompt, prompt, prompt)
        assert rows.decoder.computed_prompt_tokens == 39
        rows.step([10, 11, 12])
        rows.join(prompt)  # joins later
        assert rows.decoder.computed_prompt_tokens == 39
        rows.step([13, 14, 15, 16])


def test_prompts_with_a_common_prefix_compute_the_prefix_once() -> None:
    rows = Rows(LLAMA)
    system = list(range(4, 44))
    with generating(LLAMA):
        rows.join([*system, 50, 51, 52], [*system, 53, 54, 55], [60, 61])
        assert rows.decoder.computed_prompt_tokens == (40 + 2) + 2 + 1
        rows.step([10, 11, 12])


def test_the_next_turn_computes_only_new_tokens_after_others_used_slots() -> None:
    rows = Rows(LLAMA)
    with generating(LLAMA):
        rows.join([5, 6, 7, 8, 9], [20, 21, 22, 23])
        rows.step([30, 31])
        rows.step([32, 33])
        first, second = rows.leave(0), rows.leave(0)
        rows.join([40, 41, 42])
        computed = rows.decoder.computed_prompt_tokens
        rows.join([*second, 50, 51], [*first, 52, 53])
        # For each, the last generated token and the first new one; the step computes the last.
        assert rows.decoder.computed_prompt_tokens == computed + 2 + 2
        rows.step([1, 1, 1])


def test_forget_discards_everything_computed_before() -> None:
    model = tiny_llama(seed=1)
    rows = Rows(model)
    with generating(model):
        rows.join([5, 6, 7, 8], [5, 6, 9])
        rows.step([30, 31])
        left = rows.leave(0)
        assert rows.decoder.forget()
        assert not rows.decoder.forget()
        model.model.embed_tokens.weight.mul_(-1)
        rows.leave(0)
        computed = rows.decoder.computed_prompt_tokens
        rows.join(left, [5, 6, 7, 8])
        assert rows.decoder.computed_prompt_tokens == computed + len(left) - 1
        rows.step([32, 33])


def test_prompts_longer_than_a_pass_are_computed_in_several_passes() -> None:
    model = tiny_llama(max_positions=2048)
    decoder = SlotDecoder(model, max_rows=2, max_model_len=2048)
    prompts = [[4 + i % 50 for i in range(1300)], [4 + i % 7 for i in range(900)]]
    with generating(model):
        decoder.join(prompts)
        logits = decoder.step([prompt[-1] for prompt in prompts])
        for row, prompt in enumerate(prompts):
            expected = model(torch.tensor([prompt])).logits[0, -1]
            torch.testing.assert_close(logits[row], expected, atol=1e-3, rtol=0)


def test_a_failed_pass_leaves_rows_unchanged() -> None:
    rows = Rows(LLAMA)

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    with generating(LLAMA):
        rows.join([5, 6, 7], [8, 9])
        hook = LLAMA.model.layers[1].register_forward_pre_hook(fail)
        try:
            with pytest.raises(RuntimeError, match="no memory"):
                rows.decoder.step([7, 9])
        finally:
            hook.remove()
        rows.step([10, 11])


@given(TOKENS, TOKENS)
def test_common_length_is_the_length_of_the_longest_common_prefix(
    first: list[int], second: list[int]
) -> None:
    same = [one == other for one, other in zip(first, second, strict=False)]
    assert common_length(first, second) == (same.index(False) if False in same else len(same))
