"""A pytest plugin: with `--stop-after=<seconds>`, no test starts after that time. Not a failure."""

import time

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stop-after", type=float, default=float("inf"), help="start no more tests after this many seconds"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(StopAfter(config.getoption("--stop-after")), "stop-after")


class StopAfter:
    """Skips the tests that are left when the time is up, and reports their number."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._skipped = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if time.monotonic() < self._deadline:
            return None
        self._skipped += 1
        return True  # the test counts as run, without a result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._skipped:
            terminalreporter.write_line(
                f"{self._skipped} tests were not started within {self._limit_s:.0f} s; `make test` runs all"
            )
