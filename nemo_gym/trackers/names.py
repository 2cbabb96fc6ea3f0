"""Names that MLflow takes, from names that it does not: readable, distinct, the same in every run."""

import hashlib
import re
from collections.abc import Collection, Iterable

LONGEST = 250
"""Bytes: MLflow's limit in characters, and short enough for a file name in a store of files."""

_SPELT_OUT = {"@": "_at_", "[": ".", "]": "", "%": "_percent", "+": "_plus"}
_NOT_ALLOWED = re.compile(r"[^/\w.\- ]")
_DIGEST = 8


def allowed_names(names: Iterable[str]) -> dict[str, str]:
    """The name in MLflow for each of these. One that is allowed as it is keeps its name, unless it stands
    below another: what is beside a metric, as `mean/reward/std_err` is, becomes `mean/reward.std_err`."""
    originals = sorted(set(names))
    spelt = {name: spelt_out(name) for name in originals}
    metrics = set(spelt.values())
    taken: set[str] = set()
    result: dict[str, str] = {}
    for name in sorted(originals, key=lambda name: (spelt[name] != name, name)):
        text = _beside(spelt[name], metrics)
        result[name] = _marked(name, text) if text in taken else text
        taken.add(result[name])
    return {name: result[name] for name in originals}


def spelt_out(name: str) -> str:
    """`pass@1[avg-of-4]/accuracy` → `pass_at_1.avg-of-4/accuracy`"""
    text = "".join(_SPELT_OUT.get(character, character) for character in name)
    text = _NOT_ALLOWED.sub("_", text)
    # MLflow takes names for paths: none may lead elsewhere or be empty.
    text = "/".join("_" * len(part) or "_" if part in ("", ".", "..") else part for part in text.split("/"))
    return text if len(text.encode()) <= LONGEST else _marked(name, text)


def _marked(name: str, text: str) -> str:
    """Told apart by a digest of the original, which does not depend on the other names."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    cut = text.encode()[: LONGEST - _DIGEST - 1].decode(errors="ignore").rstrip("/")
    return f"{cut}-{digest}"


def _beside(text: str, metrics: Collection[str]) -> str:
    """A store of files cannot have `a` and `a/b`: the one would be a file, the other makes it a folder."""
    parts = text.split("/")
    joined = parts[0]
    for count, part in enumerate(parts[1:], 1):
        joined += ("." if "/".join(parts[:count]) in metrics else "/") + part
    return joined
