"""The progress of a download."""

import io

import pytest

from nemo_gym.cli.fetch_model import DownloadBar, DownloadLines


def test_terminal_shows_a_bar_that_is_redrawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    progress = DownloadBar()
    for have in (0, 46_500_000, 93_000_000):
        progress(have, 93_000_000)
    *drawn, end = stream.getvalue().split("\n")
    assert len(drawn) == 1 and end == ""
    assert "100%" in drawn[0].split("\r")[-1] and "93.0M/93.0M" in drawn[0].split("\r")[-1]


def test_other_streams_get_the_last_line_even_of_a_quick_download(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    progress = DownloadLines()
    for have in (0, 46_500_000, 93_000_000):
        progress(have, 93_000_000)
    assert stream.getvalue() == "  93 of 93 MB (100 %)\n"
