"""Hints for error messages about an unknown name: close matches, or all known names."""

from collections.abc import Iterable, Mapping, Sequence

from nemo_gym.setting_names import close_matches

Origins = Mapping[str, Sequence[str]]
"""The files (and the command line) that define each top-level key."""

_SHOWN = 8


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`did you mean a or b?` if there are close matches, else a list of the candidates."""
    known = sorted(set(candidates))
    close = close_matches(name, known)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if not known:
        return "none are defined"
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return f"known: {', '.join(known[:_SHOWN])}{more}"


def defined_in(key: object, origins: Origins) -> str:
    """` (in a.yaml)`: the source of a top-level key; empty if it is not known."""
    sources = origins.get(str(key), ())
    return f" (in {' and '.join(sources)})" if sources else ""


def listed(lines: Iterable[str]) -> str:
    """Indented lines, for an error that reports several things at once."""
    return "".join(f"\n  {line}" for line in lines)
