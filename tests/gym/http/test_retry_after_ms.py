import pytest

from nemo_gym.http import ClientResponse, retry_after_s


def parsed_delay_s(**headers: str) -> float | None:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return retry_after_s(ClientResponse(429, named, b""))


def test_delay_in_milliseconds_is_obeyed() -> None:
    assert parsed_delay_s(retry_after_ms="1500") == 1.5


def test_milliseconds_win_over_seconds() -> None:
    assert parsed_delay_s(Retry_After="7", Retry_After_Ms="250") == 0.25


@pytest.mark.parametrize("text", ["soon", "", "1s"])
def test_unreadable_milliseconds_fall_back_to_the_seconds(text: str) -> None:
    assert parsed_delay_s(retry_after="7", retry_after_ms=text) == 7.0
    assert parsed_delay_s(retry_after_ms=text) is None


def test_negative_milliseconds_mean_no_delay() -> None:
    assert parsed_delay_s(retry_after_ms="-5") == 0.0
