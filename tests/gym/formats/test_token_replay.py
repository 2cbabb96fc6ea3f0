import pytest

from nemo_gym.formats.token_replay import replayed_prompt

EOS = 9


def test_sampled_ids_replace_those_of_the_rendered_text() -> None:
    assert replayed_prompt([1, 2, 3, 7, 9], [1, 2, 3, 8, 9], [1, 2, 3, 8, 9, 4, 5], EOS) == [
        1,
        2,
        3,
        7,
        9,
        4,
        5,
    ]


def test_truncated_turn_gets_the_end_of_turn_of_the_template() -> None:
    assert replayed_prompt([1, 2, 3, 7], [1, 2, 3, 8, 9], [1, 2, 3, 8, 9, 4, 5], EOS) == [1, 2, 3, 7, 9, 4, 5]


def test_end_tokens_of_earlier_turns_are_counted() -> None:
    assert replayed_prompt([1, 9, 5, 7, 9], [1, 9, 5, 8, 9], [1, 9, 5, 8, 9, 4], EOS) == [1, 9, 5, 7, 9, 4]


def test_rendered_text_with_another_number_of_tokens_is_replaced() -> None:
    assert replayed_prompt([1, 7, 7, 7, 9], [1, 8, 9], [1, 8, 9, 4], EOS) == [1, 7, 7, 7, 9, 4]


def test_without_known_tokens_the_rendered_text_is_the_prompt() -> None:
    assert replayed_prompt([], [], [1, 2], EOS) == [1, 2]


@pytest.mark.parametrize(
    ("up_to_turn", "whole", "eos", "problem"),
    [
        ([1, 8], [1, 8, 4], EOS, "does not end turns"),
        ([1, 9, 8, 9], [1, 9, 4], EOS, "1 end-of-sequence tokens, but .* has 2"),
        ([1, 8, 9], [1, 8, 9, 4], None, "no end-of-sequence token"),
    ],
)
def test_history_that_cannot_be_replayed_is_an_error(
    up_to_turn: list[int], whole: list[int], eos: int | None, problem: str
) -> None:
    with pytest.raises(AssertionError, match=problem):
        replayed_prompt([1, 7], up_to_turn, whole, eos)
