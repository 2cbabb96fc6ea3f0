import resource

import pytest

from nemo_gym.launch.limits import raise_file_limit


class Limits:
    """A system that enforces a lower limit of open files than the hard limit it reports."""

    def __init__(self, soft: int, hard: int, enforced: int) -> None:
        self.soft, self.hard, self._enforced = soft, hard, enforced

    def get(self, _: int) -> tuple[int, int]:
        return self.soft, self.hard

    def set(self, _: int, limits: tuple[int, int]) -> None:
        if limits[0] > self._enforced:
            raise ValueError("current limit exceeds maximum limit")
        self.soft, self.hard = limits


@pytest.mark.parametrize(
    ("soft", "hard", "enforced", "expected"),
    [
        (1024, 4096, 4096, 4096),
        (1024, resource.RLIM_INFINITY, 2**30, 1_048_576),
        (256, resource.RLIM_INFINITY, 10_240, 8192),  # macOS
        (4096, 4096, 4096, 4096),
        (256, resource.RLIM_INFINITY, 256, 256),
    ],
)
def test_limit_of_open_files_is_raised_as_far_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, enforced: int, expected: int
) -> None:
    limits = Limits(soft, hard, enforced)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    raise_file_limit()
    assert (limits.soft, limits.hard) == (expected, hard)
