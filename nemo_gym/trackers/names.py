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
    """The name in MLflow for each of these. One that is allowed as it is keeps its name."""
    originals = sorted(set(names))
    spelt = {name: spelt_out(name) for name in originals}
    taken: set[str] = set()
    result: dict[str, str] = {}
    for name in sorted(originals, key=lambda name: spelt[name] != name):
        result[name] = _marked(name, spelt[name]) if spelt[name] in taken else spelt[name]
        taken.add(result[name])
    folders = {folder for name in taken for folder in _folders(name)}
    return {name: _beside_folder(name, result[name], folders) for name in originals}


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


def _folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _beside_folder(name: str, text: str, folders: Collection[str]) -> str:
    """A store of files cannot have `a` and `a/b`: the one would be a file, the other makes it a folder."""
    return _marked(name, text) if text in folders else text
