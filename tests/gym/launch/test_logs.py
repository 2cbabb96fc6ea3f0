"""Log lines are complete and contain no secrets, however the bytes arrive."""

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.launch.logs import LogLines

SECRET = "sk-long-enough"


def shown(*parts: bytes) -> list[str]:
    lines = LogLines({SECRET})
    return [line for part in parts for line in lines.feed(part)] + lines.end()


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_lines_do_not_depend_on_how_bytes_arrive(parts: list[bytes]) -> None:
    assert shown(*parts) == shown(b"".join(parts))


@given(st.integers(0, len(SECRET)), st.integers(0, 3000))
def test_truncated_text_contains_no_part_of_a_secret(split: int, after: int) -> None:
    line = b"x" * 70_000 + SECRET.encode() + b"y" * after
    at = 70_000 + split
    assert "".join(shown(line[:at], line[at:])) == "x" * 70_000 + "****" + "y" * after


def test_long_line_is_passed_on_in_pieces_before_its_end() -> None:
    lines = LogLines({SECRET})
    pieces = [piece for _ in range(100) for piece in lines.feed(b"z" * 10_000)]
    assert len(pieces) > 1
    assert "".join(pieces + lines.end()) == "z" * 1_000_000


def test_text_is_not_cut_inside_a_character() -> None:
    text = "é" * 100_000
    data = text.encode()
    assert "".join(shown(data[:70_001], data[70_001:])) == text


def test_secret_may_be_longer_than_a_piece() -> None:
    secret = "s" * 200_000
    lines = LogLines({secret})
    data = ("a" + secret + "b").encode()
    parts = [data[start : start + 60_000] for start in range(0, len(data), 60_000)]
    assert "".join([line for part in parts for line in lines.feed(part)] + lines.end()) == "a****b"


def test_bytes_that_are_not_text_are_shown_as_bytes() -> None:
    assert shown(b"a\xff\xfeb\r\n", b"next") == ["a\ufffd\ufffdb", "next"]
