"""Very small causal language models with random weights, and a tokenizer.

The tokenizer splits at white space. Its 64 words are four special tokens (pad 0, unknown 1, end of sequence
2, begin of sequence 3), six punctuation marks, the numbers 0 to 5 and the words w16 to w63. Known words
separated by single spaces survive a round trip.
"""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

# For models of this size, synchronizing two threads costs more than the work.
torch.set_num_threads(1)

VOCABULARY_SIZE = 64
PAD_ID = 0
EOS_ID = 2

SPECIALS = ("<pad>", "<unk>", "</s>", "<s>")
WORDS = (
    *SPECIALS,
    *(".", ",", "=", "+", ":", "?"),
    *(str(number) for number in range(6)),
    *(f"w{number}" for number in range(16, VOCABULARY_SIZE)),
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Word level; the id of word `w17` is 17."""
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", unk_token="<unk>", eos_token="</s>", bos_token="<s>"
    )


def tiny_llama(seed: int = 0, *, max_positions: int = 512, kv_heads: int = 1) -> LlamaForCausalLM:
    """Two layers, hidden size 32, two heads that share a key; in eval mode."""
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_positions,
        initializer_range=0.3,  # far from uniform, so that a wrong position or mask shows in the log-probs
        pad_token_id=PAD_ID,
        bos_token_id=3,
        eos_token_id=EOS_ID,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def tiny_gpt2(seed: int = 0, *, max_positions: int = 128) -> GPT2LMHeadModel:
    """Two layers with learned positions: one beyond `max_positions` is an error."""
    config = GPT2Config(
        vocab_size=VOCABULARY_SIZE,
        n_positions=max_positions,
        n_embd=32,
        n_layer=2,
        n_head=2,
        initializer_range=0.3,
        bos_token_id=3,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config).eval()
