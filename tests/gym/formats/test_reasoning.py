"""Reasoning in a separate field and between tags."""

from typing import Any

import pytest

from nemo_gym.formats.reasoning import ReasoningField, ReasoningTags, SplitText, split_reasoning

FIELD, TAGS = ReasoningField(), ReasoningTags()


@pytest.mark.parametrize(
    ("text", "reasoning", "rest", "is_truncated"),
    [
        ("<think>a</think>b", "a", "b", False),
        ("<think>\na\n</think>\n\nb ", "\na\n", "\n\nb ", False),
        ("<think></think>b", "", "b", False),
        ("<think>a</think>", "a", "", False),
        (" \n<think>a</think>b", "a", "b", False),
        ("a</think>b", "a", "b", False),
        ("</think>b", "", "b", False),
        ("<think>a", "a", "", True),
        ("<think>", "", "", True),
        ("<think>a<think>b</think>c", "a<think>b", "c", False),
        ("<think>a</think>b<think>c</think>d", "a", "b<think>c</think>d", False),
        ("a</think>b<think>c", "a", "b<think>c", False),
        ("b<think>a</think>c", None, "b<think>a</think>c", False),
        ("b<think>a", None, "b<think>a", False),
        ("b", None, "b", False),
        ("", None, "", False),
    ],
)
def test_tags_separate_reasoning_from_text_and_nothing_is_stripped(
    text: str, reasoning: str | None, rest: str, is_truncated: bool
) -> None:
    assert TAGS.read({}, text) == SplitText(reasoning, rest, is_truncated)
    assert split_reasoning(text) == (reasoning, rest)


def test_with_a_parser_tags_in_the_text_are_text() -> None:
    assert FIELD.read({}, "<think>a</think>b") == SplitText(None, "<think>a</think>b")


@pytest.mark.parametrize("style", [FIELD, TAGS])
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_both_names_of_the_field_are_read(style: ReasoningField | ReasoningTags, name: str) -> None:
    assert style.read({name: "a"}, "b") == SplitText("a", "b")


@pytest.mark.parametrize(
    "empty", [{}, {"reasoning_content": None}, {"reasoning": ""}, {"reasoning": {"x": 1}}]
)
def test_an_empty_field_is_not_reasoning(empty: dict[str, Any]) -> None:
    assert FIELD.read(empty, "b") == SplitText(None, "b")


def test_the_older_name_takes_precedence_unless_it_is_empty() -> None:
    assert FIELD.read({"reasoning_content": "a", "reasoning": "other"}, "").reasoning == "a"
    assert FIELD.read({"reasoning_content": None, "reasoning": "other"}, "").reasoning == "other"


@pytest.mark.parametrize(
    ("content", "is_truncated", "written"),
    [
        ("b", False, "<think>a</think>b"),
        ("", False, "<think>a</think>"),
        (None, False, "<think>a</think>"),
        (None, True, "<think>a"),
        ("b", True, "<think>a</think>b"),
        (
            [{"type": "text", "text": "b"}],
            False,
            [{"type": "text", "text": "<think>a</think>"}, {"type": "text", "text": "b"}],
        ),
    ],
)
def test_tags_are_written_before_any_content(content: Any, is_truncated: bool, written: Any) -> None:
    message = {"role": "assistant", "content": content}
    TAGS.write(message, "a", is_truncated=is_truncated)
    assert message["content"] == written
