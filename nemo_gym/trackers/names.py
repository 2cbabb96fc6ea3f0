"""Metric names that MLflow accepts, derived from ours: readable, unique, the same in every run."""

import hashlib
import re
from collections.abc import Collection, Iterable

MAX_BYTES = 250
"""MLflow's limit is 250 characters; 250 bytes are also short enough for a file name."""

_SPELT_OUT = {"@": "_at_", "[": ".", "]": "", "%": "_percent", "+": "_plus"}
_NOT_ALLOWED = re.compile(r"[^/\w.\- ]")
_DIGEST = 8


def allowed_names(names: Iterable[str]) -> dict[str, str]:
    """The name in MLflow for each of these names.

    A name that MLflow accepts is not changed, except if it begins with another name: next to `mean/reward`,
    `mean/reward/std_err` becomes `mean/reward.std_err`.
    """
    originals = sorted(set(names))
    spelt = {name: spelt_out(name) for name in originals}
    metrics = set(spelt.values())
    taken: set[str] = set()
    result: dict[str, str] = {}
    for name in sorted(originals, key=lambda name: (spelt[name] != name, name)):
        text = _not_below(spelt[name], metrics)
        result[name] = _with_digest(name, text) if text in taken else text
        taken.add(result[name])
    return {name: result[name] for name in originals}


def spelt_out(name: str) -> str:
    """`pass@1[avg-of-4]/accuracy` → `pass_at_1.avg-of-4/accuracy`"""
    text = "".join(_SPELT_OUT.get(character, character) for character in name)
    text = _NOT_ALLOWED.sub("_", text)
    # MLflow uses names as paths: no part may be empty or lead to another folder.
    text = "/".join("_" * len(part) or "_" if part in ("", ".", "..") else part for part in text.split("/"))
    return text if len(text.encode()) <= MAX_BYTES else _with_digest(name, text)


def _with_digest(name: str, text: str) -> str:
    """Made unique by a digest of the original name, so the result does not depend on the other names."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    cut = text.encode()[: MAX_BYTES - _DIGEST - 1].decode(errors="ignore").rstrip("/")
    return f"{cut}-{digest}"


def _not_below(text: str, metrics: Collection[str]) -> str:
    """The name with `.` after each part that is a metric itself. MLflow may store metrics as files, and with
    metrics `a` and `a/b`, `a` would be both a file and a folder."""
    parts = text.split("/")
    joined = parts[0]
    for count, part in enumerate(parts[1:], 1):
        joined += ("." if "/".join(parts[:count]) in metrics else "/") + part
    return joined
