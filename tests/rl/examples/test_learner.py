"""The learner: prefix trees equal single sequences, and a step makes better completions more likely."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from examples.grpo.learner import Learner, LearnerSettings, samples_of
from examples.grpo.packing import packed, token_logprobs
from nemo_rl.experience.interfaces import Completion, PromptGroupRecord

pytestmark = pytest.mark.torch

VOCABULARY = 64
SHARED = [5, 6, 7, 8]
SEQUENCES = [
    [*SHARED, 9, 10, 11],
    [*SHARED, 9, 10, 12, 13],
    [*SHARED, 9, 10, 11],
    [*SHARED, 20],
    [*SHARED, 9],
    [30, 31],
]


def small_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
    ).eval()


def logprobs_alone(model: LlamaForCausalLM, sequence: list[int]) -> torch.Tensor:
    """The log-probabilities of all tokens except the first."""
    ids = torch.tensor([sequence])
    logprobs = model(ids).logits.log_softmax(-1)[0, :-1]
    return logprobs.gather(1, ids[0, 1:, None]).squeeze(1)


def completion(prompt: list[int], sampled: list[int], logprobs: list[float], reward: float) -> Completion:
    log = [
        {"role": "user", "content": "", "token_ids": torch.tensor(prompt)},
        {
            "role": "assistant",
            "content": "",
            "token_ids": torch.tensor(sampled),
            "generation_logprobs": torch.tensor(logprobs),
        },
        {"role": "environment", "content": "", "token_ids": torch.tensor([40, 41])},
    ]
    return Completion(log, None, False, reward)


def group(rewards: list[float], prompt: list[int] = SHARED) -> PromptGroupRecord:
    completions = [
        completion(prompt, [20 + index, 3], [-4.0, -4.1], reward) for index, reward in enumerate(rewards)
    ]
    return PromptGroupRecord(0, completions[0].message_log[:1], None, {}, completions, {})


@pytest.mark.parametrize("max_tokens", [1, 8, 1000])
def test_every_sequence_is_complete_in_its_tree(max_tokens: int) -> None:
    packs = packed(SEQUENCES, max_tokens=max_tokens)
    found = {
        member: pack.token_ids_T[nodes].tolist()
        for pack in packs
        for member, nodes in zip(pack.members, pack.nodes, strict=True)
    }
    assert found == dict(enumerate(SEQUENCES))


def test_shared_prefixes_are_in_a_tree_once() -> None:
    (pack,) = packed(SEQUENCES, max_tokens=1000)
    prefixes = {tuple(sequence[:end]) for sequence in SEQUENCES for end in range(1, len(sequence) + 1)}
    assert len(pack.token_ids_T) == len(prefixes)


def test_trees_do_not_exceed_max_tokens() -> None:
    packs = packed(SEQUENCES, max_tokens=9)
    assert len(packs) > 1
    assert all(len(pack.token_ids_T) <= 9 for pack in packs)


def test_logprobs_of_a_tree_equal_those_of_single_sequences() -> None:
    model = small_model()
    (pack,) = packed(SEQUENCES, max_tokens=1000)
    logprobs_T = token_logprobs(model, pack, pack.parents_T >= 0)
    for member, nodes in zip(pack.members, pack.nodes, strict=True):
        alone = logprobs_alone(model, SEQUENCES[member])
        assert torch.allclose(logprobs_T[nodes[1:]], alone, atol=1e-5)


def test_gradients_of_a_tree_equal_the_sum_over_single_sequences() -> None:
    model, weights = small_model(), [0.5, -1.0, 2.0, 1.5, -0.25, 1.0]
    for weight, sequence in zip(weights, SEQUENCES, strict=True):
        (weight * logprobs_alone(model, sequence).sum()).backward()
    alone = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for pack in packed(SEQUENCES, max_tokens=9):
        logprobs_T = token_logprobs(model, pack, pack.parents_T >= 0)
        parts = zip(pack.members, pack.nodes, strict=True)
        sum(weights[member] * logprobs_T[nodes[1:]].sum() for member, nodes in parts).backward()
    for name, parameter in model.named_parameters():
        scale = alone[name].norm()
        assert (parameter.grad - alone[name]).norm() <= 1e-4 * scale, name


def test_only_sampled_tokens_are_trained_on() -> None:
    sample = samples_of(group([1.0, 0.0]))[0]
    assert sample.is_trained_L.tolist() == [False] * 4 + [True] * 2 + [False] * 2
    assert sample.sampler_logprobs_L[4:6].tolist() == pytest.approx([-4.0, -4.1])


def test_step_makes_the_better_completion_more_likely() -> None:
    model = small_model()
    learner = Learner(model, LearnerSettings(learning_rate=1e-3))
    before = [logprobs_alone(model, [*SHARED, 20 + index])[-1].item() for index in range(2)]
    report = learner.update([group([1.0, 0.0])])
    after = [logprobs_alone(model, [*SHARED, 20 + index])[-1].item() for index in range(2)]
    assert after[0] > before[0]
    assert after[1] < before[1]
    assert report.trained_tokens == 4
    assert report.sequence_tokens == 16
    assert report.computed_tokens == 12


def test_gap_between_learner_and_sampler_is_measured_before_the_step() -> None:
    model = small_model()
    own = [logprobs_alone(model, [*SHARED, 20 + index, 3])[-2:].tolist() for index in range(2)]
    moved = [[one - 0.5, other + 0.25] for one, other in own]
    completions = [completion(SHARED, [20 + index, 3], moved[index], float(index)) for index in range(2)]
    record = PromptGroupRecord(0, completions[0].message_log[:1], None, {}, completions, {})
    report = Learner(model).update([record])
    assert report.logprob_gap_mean == pytest.approx(0.375, abs=1e-4)
    assert report.logprob_gap_max == pytest.approx(0.5, abs=1e-4)
    assert report.ratio_max == pytest.approx(torch.tensor(0.5).exp().item(), abs=1e-3)


def test_group_with_equal_rewards_changes_nothing() -> None:
    model = small_model()
    before = [parameter.clone() for parameter in model.parameters()]
    report = Learner(model).update([group([1.0, 1.0]), group([0.0, 0.0])])
    assert report.loss is None
    assert (report.trained_groups, report.skipped_groups) == (0, 2)
    after = model.parameters()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_large_importance_weights_are_bounded() -> None:
    updates = []
    for logprob in (-20.0, -40.0):  # far less likely to the sampler than to the learner
        model = small_model()
        completions = [completion(SHARED, [20 + index], [logprob], float(index)) for index in range(2)]
        record = PromptGroupRecord(0, completions[0].message_log[:1], None, {}, completions, {})
        updates.append(Learner(model).update([record]))
    assert updates[0].ratio_max != updates[1].ratio_max
    assert updates[0].grad_norm == pytest.approx(updates[1].grad_norm)


def test_weights_stay_float16_values_if_the_policy_is_served_as_float16() -> None:
    model = small_model()
    learner = Learner(model, LearnerSettings(learning_rate=1e-6, is_float16_served=True))
    before = model.lm_head.weight.detach().clone()
    for _ in range(100):
        learner.update([group([1.0, 0.0])])
    after = model.lm_head.weight.detach()
    assert torch.equal(after, after.half().float())
    assert torch.equal(before, before.half().float())
    moved = (after - before).abs()
    assert moved.max() > 1e-5  # updates that are too small for F16 add up
