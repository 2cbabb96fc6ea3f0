import asyncio
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from nemo_gym.errors import ConfigError
from nemo_gym.local_engine import EngineSettings, Generation, LocalEngine, find_weights, generate
from nemo_gym.local_engine.gguf_file import read_gguf_file
from nemo_rl.models.weights import Policy, export_gguf, load_policy
from tests.support.tiny_gguf import Kind, write_tiny_gguf

pytestmark = pytest.mark.torch

TEXT = torch.arange(3, 40).unsqueeze(0)


@pytest.fixture(scope="module")
def included() -> Policy:
    return load_policy()


@pytest.fixture
def tiny(tmp_path: Path) -> Policy:
    return load_policy(write_tiny_gguf(tmp_path / "tiny.gguf"))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(TEXT).logits
    return found


def weights_of(policy: Policy) -> dict[str, torch.Tensor]:
    return dict(policy.model.state_dict())


def read_by_transformers(file: Path) -> LlamaForCausalLM:
    """The model as transformers reads it, without its loading step, which needs another package."""
    config = load_gguf_checkpoint(str(file))["config"]
    model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected
    return model


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.Q4_1, Kind.Q8_0, Kind.Q4_0])
def test_loaded_model_equals_the_one_that_transformers_reads(
    tmp_path: Path, kind: Kind, is_tied: bool
) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", kind=kind, is_tied=is_tied)
    torch.testing.assert_close(
        logits(load_policy(file).model), logits(read_by_transformers(file)), atol=1e-5, rtol=0
    )


def test_model_can_be_trained_and_saved(tiny: Policy, tmp_path: Path) -> None:
    model: Any = tiny.model
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not [name for name in vars(model) if "quant" in name]
    model(TEXT, labels=TEXT).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.save_pretrained(tmp_path / "saved")
    again = LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    torch.testing.assert_close(logits(again), logits(model))


def test_tokenizer_separates_digits_and_markup_and_has_the_chat_template(tiny: Policy) -> None:
    tokenizer = tiny.tokenizer
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("hello  7<|im_end|>"))
    assert tokens == ["hello", "ĠĠ", "7", "<|im_end|>"]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 2)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert text == "hello<|im_end|>"


@pytest.mark.parametrize("is_tied", [True, False])
def test_exported_weights_load_unchanged_except_for_rounding_to_f16(tmp_path: Path, is_tied: bool) -> None:
    policy = load_policy(write_tiny_gguf(tmp_path / "tiny.gguf", kind=Kind.Q4_1, is_tied=is_tied))
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    export_gguf(policy, tmp_path / "new" / "exported.gguf")
    again = load_policy(tmp_path / "new" / "exported.gguf")
    expected = {
        name: weight.half().float() if weight.ndim > 1 else weight
        for name, weight in weights_of(policy).items()
    }
    torch.testing.assert_close(weights_of(again), expected, atol=0, rtol=0)
    assert again.tokenizer.backend_tokenizer.to_str() == policy.tokenizer.backend_tokenizer.to_str()
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["exported.gguf"]


def test_export_follows_the_gguf_format(tiny: Policy, tmp_path: Path) -> None:
    export_gguf(tiny, tmp_path / "exported.gguf")
    reader: Any = gguf.GGUFReader(tmp_path / "exported.gguf")
    assert reader.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_F16
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert "output.weight" not in tensors
    assert tensors["output_norm.weight"].tensor_type == Kind.F32
    assert tensors["blk.1.attn_v.weight"].tensor_type == Kind.F16
    own = weights_of(tiny)["model.layers.1.self_attn.v_proj.weight"].numpy()
    np.testing.assert_array_equal(tensors["blk.1.attn_v.weight"].data, own.astype(np.float16))
    before, after = read_gguf_file(tiny.source).metadata, read_gguf_file(tmp_path / "exported.gguf").metadata
    assert after == before | {"general.file_type": 1}


def test_diverged_policy_is_not_exported_and_the_last_export_is_kept(tiny: Policy, tmp_path: Path) -> None:
    output = tmp_path / "out" / "exported.gguf"
    export_gguf(tiny, output)
    content = output.read_bytes()
    for number in (float("nan"), 1e6):
        with torch.no_grad():
            weights_of(tiny)["model.layers.0.mlp.up_proj.weight"][3, 5] = number
        with pytest.raises(ValueError, match=r"blk\.0\.ffn_up\.weight has values"):
            export_gguf(tiny, output)
    assert output.read_bytes() == content
    assert len(list(output.parent.iterdir())) == 1


def test_model_whose_tensors_differ_from_its_file_is_not_exported(tiny: Policy, tmp_path: Path) -> None:
    model: Any = tiny.model
    model.model.norm.bias = torch.nn.Parameter(torch.zeros(64))
    with pytest.raises(ConfigError, match=r"model\.norm\.bias is not in both"):
        export_gguf(tiny, tmp_path / "exported.gguf")
    del model.model.norm.bias
    model.resize_token_embeddings(300, mean_resizing=False)
    with pytest.raises(ConfigError, match=r"embed_tokens\.weight has the shape \(300, 64\)"):
        export_gguf(tiny, tmp_path / "exported.gguf")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"architecture": "qwen2"}, "architecture is 'qwen2'"),
        ({"more_tensors": {"rope_freqs.weight": (8,)}}, "tensor rope_freqs.weight"),
        ({"more_metadata": {"llama.rope.scaling.type": "yarn"}}, "scales its rotary positions"),
    ],
)
def test_model_that_cannot_be_trained_is_rejected(
    tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=rf"other\.gguf: .*{problem}"):
        load_policy(write_tiny_gguf(tmp_path / "other.gguf", **options))


def test_truncated_file_is_rejected(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "cut.gguf")
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(ConfigError, match=r"cut\.gguf: the file ends within tensor output_norm"):
        load_policy(file)
    file.write_bytes(whole[:1000])
    with pytest.raises(ConfigError, match=r"cut\.gguf: cannot be read as a GGUF file"):
        load_policy(file)


ODD_TEXTS = [
    "Two spaces  7, a date 2024-05-06,\n\n 3.14 and\t12",
    "<|im_start|>user\nIt's I'LL don't<|im_end|>\n",
    "Ⅷ ½ ٣ \u00a0\u2003 é 日本語 🙂👩\u200d👩\u200d👧 \ufeff",
    '<tool_call>\n{"name": "add", "arguments": {"a": 17}}\n</tool_call>',
]
QUESTIONS = ["Tell me a story about a fox.", "Explain how rain forms.", "Count to twenty."]


def test_engine_serves_an_export_with_the_same_tokens_and_log_probabilities(
    included: Policy, tmp_path: Path
) -> None:
    export_gguf(included, tmp_path / "exported.gguf")
    other = write_tiny_gguf(tmp_path / "other.gguf")

    async def serve_export() -> list[Generation]:
        engine = LocalEngine(EngineSettings(tmp_path / "exported.gguf", slots=3, context=256))
        await engine.start()
        try:
            for text in ODD_TEXTS:
                body = {"content": text, "parse_special": True, "add_special": False}
                assert (await engine.call("/tokenize", body))["tokens"] == encoded(included, text)
            with pytest.raises(ConfigError, match=r"other\.gguf has 264 tokens.*same model"):
                await engine.reload(other)
            return await asyncio.gather(
                *(generate_reply(engine, included, question) for question in QUESTIONS)
            )
        finally:
            await engine.stop(1.0)

    differences, agreements = [], []
    for question, reply in zip(QUESTIONS, asyncio.run(serve_export()), strict=True):
        prompt = prompt_of(included, question)
        with torch.no_grad():
            model: Any = included.model
            log_probs = model(torch.tensor([prompt + reply.token_ids])).logits[0].log_softmax(-1)
        for position, info in enumerate(reply.token_info, len(prompt) - 1):
            differences.append(abs(log_probs[position, info["id"]].item() - info["logprob"]))
            best = log_probs[position].topk(2)
            if best.values[0] - best.values[1] > 0.02:
                agreements.append(best.indices[0].item() == info["top_logprobs"][0]["id"])
    assert sum(differences) / len(differences) < 0.005
    assert len(agreements) > 60 and all(agreements)


def encoded(policy: Policy, text: str) -> list[int]:
    ids: list[int] = policy.tokenizer.encode(text, add_special_tokens=False)
    return ids


def prompt_of(policy: Policy, question: str) -> list[int]:
    messages = [{"role": "user", "content": question}]
    text = policy.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return encoded(policy, str(text))


async def generate_reply(engine: LocalEngine, policy: Policy, question: str) -> Generation:
    plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1, "ignore_eos": True}
    return await generate(engine, prompt_of(policy, question), plain | {"n_predict": 32}, top_log_probs=1)


def test_included_model_is_the_default(included: Policy) -> None:
    assert included.source == find_weights()
    assert sum(parameter.numel() for parameter in included.model.parameters()) == 134_515_008
