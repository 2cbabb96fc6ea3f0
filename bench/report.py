"""Measured figures and their limits (bars)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """A figure that must not exceed `limit`."""

    what: str
    figure: float
    limit: float

    @property
    def met(self) -> bool:
        return self.figure <= self.limit


def report(title: str, bars: list[Bar]) -> bool:
    """Print the figures; returns whether all bars are met."""
    print(title)
    for bar in bars:
        verdict = "met" if bar.met else "MISSED"
        print(f"  {verdict:6}  {bar.figure:8.3f}  (at most {bar.limit:.3f})  {bar.what}")
    return all(bar.met for bar in bars)
