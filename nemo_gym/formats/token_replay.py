"""The prompt of a turn that follows a turn with known token ids.

Invariant: the new prompt starts with exactly the ids that the model has read and sampled; only what came
later is tokenised from text.
"""

from collections.abc import Sequence


def replayed_prompt(
    seen: Sequence[int], up_to_turn: Sequence[int], whole: Sequence[int], eos_token_id: int | None
) -> list[int]:
    """`seen` followed by the part of the conversation after it.

    `seen` is the prompt and the generation of the newest turn with known ids. `whole` is the rendered and
    tokenised conversation; `up_to_turn` is the same up to the end of that turn, without a generation prompt.
    Both contain the same number of end-of-sequence tokens up to the end of that turn, so `whole` is split at
    the last of these. Its ids before the split may differ from the sampled ones and are not used.
    """
    if not seen:
        return list(whole)
    if eos_token_id is None:
        raise AssertionError("history cannot be replayed: the model has no end-of-sequence token")
    ends = sum(token == eos_token_id for token in up_to_turn)
    if ends == 0:
        raise AssertionError(
            "history cannot be replayed: the chat template does not end turns with an end-of-sequence token"
        )
    cut = _position(whole, eos_token_id, ends)
    known = seen[:-1] if seen[-1] == eos_token_id else seen
    return [*known, *whole[cut:]]


def _position(tokens: Sequence[int], token: int, count: int) -> int:
    """The index of the `count`-th occurrence of `token`."""
    position = -1
    for found in range(count):
        try:
            position = tokens.index(token, position + 1)
        except ValueError:
            raise AssertionError(
                f"history cannot be replayed: the conversation has {found} end-of-sequence tokens, but the "
                f"part up to the turn with known tokens has {count}"
            ) from None
    return position
