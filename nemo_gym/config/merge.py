"""Deep merge of plain data. Mappings are merged, everything else is replaced; no argument is changed."""

import re
from collections.abc import Mapping
from typing import Any

from nemo_gym.errors import ConfigError

MISSING = "???"
INHERIT_KEY = "_inherit_from"
COPY_KEY = "_copy"
DELETE_KEY = "_delete_key"

_DIRECTIVE = re.compile(r"\$\{\s*(inherit_from|copy)\s*:\s*([^{}]*?)\s*\}")
_KEY_OF = {"inherit_from": INHERIT_KEY, "copy": COPY_KEY}


def directive_mapping(value: object) -> dict[str, Any] | None:
    """`${inherit_from:a.b}` as the equivalent mapping; None for anything else."""
    match = _DIRECTIVE.fullmatch(value.strip()) if isinstance(value, str) else None
    return {_KEY_OF[match[1]]: match[2]} if match else None


def deep_merge(base: Any, top: Any) -> Any:
    """`base` with `top` merged into it. A `???` in `top` never replaces a value."""
    if isinstance(top, str) and top == MISSING:
        return base
    if not isinstance(top, dict):
        return top
    if isinstance(base, list) and top and all(_is_index(key) for key in top):
        return _merge_items(base, top)
    below = base if isinstance(base, dict) else directive_mapping(base)
    return top if below is None else _merge_mappings(below, top)


def delete_names(value: object) -> list[str]:
    """The keys in a `_delete_key`: `x,y` or a list."""
    names = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    return [name for name in (str(name).strip() for name in names) if name]


def nested(dotted: str, value: Any) -> dict[str, Any]:
    """`a.b` and a value as `{a: {b: value}}`."""
    for key in reversed(dotted.split(".")):
        value = {key: value}
    return dict(value)


def merge_dotted(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested data with changes merged into it, one after the other; their keys may be dotted."""
    merged = dict(base)
    for dotted, value in changes.items():
        merged = _merge_mappings(merged, nested(dotted, value))
    return merged


def _merge_mappings(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = _without_pending_deletes(base, top) if DELETE_KEY in base else dict(base)
    for key, value in top.items():
        if key == DELETE_KEY:
            merged[key] = delete_names(merged.get(key, [])) + delete_names(value)
        else:
            merged[key] = deep_merge(merged[key], value) if key in merged else value
    return merged


def _without_pending_deletes(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Apply the deletion of keys that `top` sets again, so that they end up set."""
    pending = delete_names(base[DELETE_KEY])
    kept = {key: value for key, value in base.items() if not (key in pending and key in top)}
    return {**kept, DELETE_KEY: [name for name in pending if name not in top]}


def _is_index(key: object) -> bool:
    return isinstance(key, str) and key.isdecimal()


def _merge_items(base: list[Any], top: dict[str, Any]) -> list[Any]:
    """`a.0=x`: replace an item of a list by its position."""
    items = list(base)
    for key, value in top.items():
        if int(key) >= len(items):
            raise ConfigError(f"no item {key} in a list of {len(items)} items; set the whole list instead")
        items[int(key)] = deep_merge(items[int(key)], value)
    return items
