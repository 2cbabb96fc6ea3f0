"""Durations and large numbers as short text."""


def clock(seconds: float | None) -> str:
    """`01:05`, `2:01:05`; a question mark if unknown."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def duration(seconds: float) -> str:
    """`3.2 s`, `34 s`; from a minute on as a clock."""
    if round(seconds) >= 60:
        return clock(seconds)
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def short_number(value: float) -> str:
    """`0.5`, `45`, `12.3k`, `588k`, `1.2M`."""
    for unit, size, least in (("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if value >= least:
            return f"{value / size:.1f}{unit}" if value < 100 * size else f"{value / size:.0f}{unit}"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
