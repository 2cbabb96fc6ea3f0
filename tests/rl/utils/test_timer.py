"""Timers measure times by label."""

import time

import pytest

from nemo_rl.utils.timer import Timer


def test_measured_times_are_reduced_by_the_chosen_operation() -> None:
    timer = Timer()
    for _ in range(3):
        timer.start("a")
        time.sleep(0.002)
        assert timer.stop("a") >= 0.002
    assert timer.reduce("a", "count") == 3
    assert timer.reduce("a", "sum") == pytest.approx(3 * timer.reduce("a", "mean"))
    assert timer.reduce("a", "min") <= timer.reduce("a", "median") <= timer.reduce("a", "max")
    assert timer.reduce("a", "std") >= 0
    assert timer.get_timing_metrics("count") == {"a": 3}


def test_label_cannot_be_started_or_stopped_twice() -> None:
    timer = Timer()
    timer.start("a")
    with pytest.raises(ValueError, match="'a' is already running"):
        timer.start("a")
    timer.stop("a")
    with pytest.raises(ValueError, match="'a' is not running"):
        timer.stop("a")


def test_block_that_raises_is_measured() -> None:
    timer = Timer()
    with pytest.raises(LookupError), timer.time("a"):
        raise LookupError
    assert timer.reduce("a", "count") == 1


def test_unknown_labels_and_reductions_are_errors() -> None:
    timer = Timer()
    with pytest.raises(KeyError, match="'b'"):
        timer.reduce("b", "sum")
    with timer.time("a"):
        pass
    with pytest.raises(ValueError, match="'mode'"):
        timer.reduce("a", "mode")
