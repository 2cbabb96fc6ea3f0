"""The prompt of a turn that follows one whose tokens are known.

Invariant: what the model has read and sampled stands in the new prompt id by id; only what came after it is
tokenised from text.
"""

from collections.abc import Sequence


def replayed_prompt(
    seen: Sequence[int], up_to_turn: Sequence[int], whole: Sequence[int], eos_token_id: int | None
) -> list[int]:
    """`seen` and then what the conversation has beyond it.

    `seen` is the prompt and the generation of the newest turn whose ids are known; `whole` the rendered and
    tokenised conversation; `up_to_turn` the same up to the end of that turn, without a generation prompt. In
    both that turn ends with the same number of end-of-sequence tokens, which is where `whole` is cut: its ids
    before that may differ from those that were sampled, and are not used.
    """
    if not seen:
        return list(whole)
    if eos_token_id is None:
        raise AssertionError("history cannot be replayed: the model has no end-of-sequence token")
    ends = sum(token == eos_token_id for token in up_to_turn)
    if ends == 0:
        raise AssertionError("history cannot be replayed: the template ends no turn with end-of-sequence")
    cut = _position(whole, eos_token_id, ends)
    known = seen[:-1] if seen[-1] == eos_token_id else seen
    return [*known, *whole[cut:]]


def _position(tokens: Sequence[int], token: int, count: int) -> int:
    """Where `token` stands for the `count`-th time."""
    position = -1
    for found in range(count):
        try:
            position = tokens.index(token, position + 1)
        except ValueError:
            raise AssertionError(
                f"history cannot be replayed: the conversation has {found} end-of-sequence tokens, "
                f"{count} up to the turn whose tokens are known"
            ) from None
    return position
