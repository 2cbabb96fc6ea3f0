"""What is shown on a terminal cannot steer it, and bars are as long as they should be."""

import pytest

from nemo_gym.terminal import bar, one_line, step, table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 数 🙂", "plain ünïcode 数 🙂"),
        ("\x1b[31mred\x07", "red"),
        ("two\nlines\r", "two lines"),
        ("\u202eright to left\u2028", "right to left"),
        ("\x9b2Jgone", "gone"),
        ("\x1b]0;a title\x07text", "text"),
    ],
)
def test_characters_that_steer_a_terminal_are_not_shown(text: str, shown: str) -> None:
    assert one_line(text) == shown
    assert table(["name"], [[text]]).splitlines()[-1] == shown


def test_a_bar_is_as_long_as_its_share_and_never_gone() -> None:
    assert bar(1.0, 10) == "█" * 10
    assert bar(0.5, 10) == "█" * 5
    assert bar(0.0, 10) == ""
    assert bar(1e-9, 10) == "▏"
    assert [step(share) for share in (0.0, 0.5, 1.0)] == ["▁", "▅", "█"]
