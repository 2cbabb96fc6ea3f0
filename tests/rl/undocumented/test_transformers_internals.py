import pytest
import torch

from nemo_rl.models.generation.kv_store import DynamicCaches, new_store
from nemo_rl.undocumented import transformers_internals
from nemo_rl.undocumented.transformers_internals import SlotCache
from tests.support.tiny_models import tiny_gpt2, tiny_llama

pytestmark = pytest.mark.torch


@pytest.mark.fast_path
def test_probe_passes_with_the_pinned_version() -> None:
    assert transformers_internals.probe.passed
    assert isinstance(new_store(2, 8), SlotCache)


def test_check_does_not_change_the_random_state_of_the_process() -> None:
    before = torch.random.get_rng_state()
    transformers_internals._check()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("model", [tiny_llama(), tiny_gpt2()], ids=["llama", "gpt2"])
@torch.no_grad()
def test_both_stores_compute_the_same_logits(model: torch.nn.Module) -> None:
    logits = []
    for store in (SlotCache(3, 64), DynamicCaches()):
        store.forward(model, [0, 1], [0, 0], [[5, 6, 7], [8, 9]])
        store.copy(0, 2, 2)
        store.swap(0, 1, 3, 2)
        logits.append(store.forward(model, [0, 1, 2], [2, 3, 2], [[10], [11, 12], [13]]))
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=0)
