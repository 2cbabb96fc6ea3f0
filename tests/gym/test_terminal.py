"""Untrusted text cannot control the terminal; tables and bars show exactly their data."""

import pytest

from nemo_gym.terminal import bar_chart, one_line, step, table


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
def test_control_characters_and_escape_sequences_are_removed(text: str, shown: str) -> None:
    assert one_line(text) == shown
    assert table(["name"], [[text]]).splitlines()[-1] == shown


def test_rich_markup_in_a_cell_is_not_interpreted() -> None:
    text = "[red]x[/red] [link=http://h]y[/link] :smile:"
    assert table(["name"], [[text]]).splitlines()[-1] == text
    assert bar_chart([("[b]", 0.0, "")], 10) == "[b]"


def test_no_cell_is_cut_and_columns_line_up() -> None:
    lines = table(["name", "value"], [["x" * 300, 1], ["数", 22]]).splitlines()
    assert lines == [
        f"{'name':<300}  value",
        "─" * 307,
        f"{'x' * 300}  1",
        f"数{' ' * 298}  22",  # two columns wide
    ]


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"])
def test_a_table_is_plain_text_in_any_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    assert table(["a", "b"], [[1, "http://host"]]) == "a  b\n──────────────\n1  http://host"


def test_a_bar_is_as_long_as_its_share_and_never_invisible() -> None:
    bars = [("all", 1.0, "4"), ("half", 0.5, "2"), ("few", 1e-9, "1"), ("none", 0.0, "0")]
    assert bar_chart(bars, 10).splitlines() == [
        " all  ██████████  4",
        "half  █████       2",
        " few  ▏           1",
        "none              0",
    ]
    assert [step(share) for share in (0.0, 0.5, 1.0)] == ["▁", "▅", "█"]
