import pytest

from nemo_gym.formats.token_replay import replayed_prompt

EOS = 9


def test_sampled_ids_stand_where_the_template_would_tokenise_others() -> None:
    assert replayed_prompt([1, 2, 3, 7, 9], [1, 2, 3, 8, 9], [1, 2, 3, 8, 9, 4, 5], EOS) == [
        1,
        2,
        3,
        7,
        9,
        4,
        5,
    ]


def test_turn_that_was_cut_by_its_length_gets_the_end_that_the_template_gives_it() -> None:
    assert replayed_prompt([1, 2, 3, 7], [1, 2, 3, 8, 9], [1, 2, 3, 8, 9, 4, 5], EOS) == [1, 2, 3, 7, 9, 4, 5]


def test_earlier_turns_that_end_in_the_same_token_are_counted() -> None:
    assert replayed_prompt([1, 9, 5, 7, 9], [1, 9, 5, 8, 9], [1, 9, 5, 8, 9, 4], EOS) == [1, 9, 5, 7, 9, 4]


def test_text_of_another_length_is_replaced_whole() -> None:
    assert replayed_prompt([1, 7, 7, 7, 9], [1, 8, 9], [1, 8, 9, 4], EOS) == [1, 7, 7, 7, 9, 4]


def test_without_known_tokens_the_rendering_is_the_prompt() -> None:
    assert replayed_prompt([], [], [1, 2], EOS) == [1, 2]


@pytest.mark.parametrize(
    ("up_to_turn", "whole", "eos", "problem"),
    [
        ([1, 8], [1, 8, 4], EOS, "ends no turn"),
        ([1, 9, 8, 9], [1, 9, 4], EOS, "1 end-of-sequence tokens, 2 up to"),
        ([1, 8, 9], [1, 8, 9, 4], None, "no end-of-sequence token"),
    ],
)
def test_history_that_cannot_be_replayed_is_never_tokenised_again(
    up_to_turn: list[int], whole: list[int], eos: int | None, problem: str
) -> None:
    with pytest.raises(AssertionError, match=problem):
        replayed_prompt([1, 7], up_to_turn, whole, eos)
