import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_rl.models.generation.stopping import StopRule, end_of_sequence_ids, stop_strings
from tests.support.tiny_models import EOS_ID, WORDS, tiny_llama, tiny_tokenizer

pytestmark = pytest.mark.torch

TOKENIZER = tiny_tokenizer()
TOKENS = st.lists(st.integers(4, 63), min_size=1, max_size=40)


def first_stop(rule: StopRule, tokens: list[int]) -> int | None:
    """The number of tokens after which the rule is met."""
    return next((count for count in range(1, len(tokens) + 1) if rule.is_met(tokens[:count])), None)


@given(TOKENS, st.data())
def test_a_stop_string_is_found_at_its_last_token_even_inside_tokens(
    tokens: list[int], data: st.DataObject
) -> None:
    text = " ".join(WORDS[token] for token in tokens)
    begin = data.draw(st.integers(0, len(text) - 1))
    stop = text[begin : data.draw(st.integers(begin + 1, min(len(text), begin + 12)))]
    rule = StopRule(frozenset(), (stop,), TOKENIZER)
    ends = [len(" ".join(WORDS[token] for token in tokens[:count])) for count in range(1, len(tokens) + 1)]
    expected = next(count for count, end in enumerate(ends, 1) if stop in text[:end])
    assert first_stop(rule, tokens) == expected


@given(TOKENS)
def test_a_stop_string_that_does_not_occur_is_not_found(tokens: list[int]) -> None:
    assert first_stop(StopRule(frozenset(), ("w99", "=="), TOKENIZER), tokens) is None


def test_a_stop_id_ends_generation_at_that_token_only() -> None:
    rule = StopRule(frozenset({EOS_ID, 20}), (), TOKENIZER)
    assert first_stop(rule, [21, 22, 20, 23]) == 3
    assert first_stop(rule, [21, 22, EOS_ID]) == 3
    assert first_stop(rule, [21, 22]) is None


def test_a_special_token_can_be_a_stop_string() -> None:
    assert first_stop(StopRule(frozenset(), ("</s>",), TOKENIZER), [21, EOS_ID, 22]) == 2


def test_stop_lists_are_joined_in_order_without_duplicates() -> None:
    assert stop_strings(["b", "a"], None, ["a", "c"]) == ("b", "a", "c")


@pytest.mark.parametrize("strings", ["stop", [""], [3]])
def test_anything_but_a_list_of_non_empty_strings_is_rejected(strings: object) -> None:
    with pytest.raises(ValueError, match="stop"):
        stop_strings(strings)  # type: ignore[arg-type]


def test_end_of_sequence_ids_are_those_of_model_and_tokenizer() -> None:
    model = tiny_llama()
    model.generation_config.eos_token_id = [7, 8]
    assert end_of_sequence_ids(model, TOKENIZER) == {EOS_ID, 7, 8}
    model.generation_config.eos_token_id = None
    assert end_of_sequence_ids(model, TOKENIZER) == {EOS_ID}
