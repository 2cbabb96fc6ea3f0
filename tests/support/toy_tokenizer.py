"""A tokenizer whose text is the token ids, separated by spaces."""

from typing import Any

SPECIAL = (0, 2)
"""The ids of padding and of the end of a sequence."""


class ToyTokenizer:
    pad_token_id = 0
    bos_token_id = eos_token_id = 2

    def __call__(self, text: str, add_special_tokens: bool = True, **_: Any) -> dict[str, list[int]]:
        specials = [self.bos_token_id] if add_special_tokens else []
        return {"input_ids": specials + [int(word) for word in text.split()]}

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        ids = [int(token) for token in token_ids]
        return " ".join(str(token) for token in ids if not (skip_special_tokens and token in SPECIAL))
