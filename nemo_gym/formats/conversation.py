"""Finds where the generated part of a conversation begins. Items may be pydantic models or plain data."""

from collections.abc import Sequence
from typing import Any

_TOKENS = "generation_token_ids"
_GENERATED_PARTS = ("output_text", "refusal")


def first_generated(items: Sequence[Any]) -> int:
    """The index of the first item that the model generated; `len(items)` if it generated none.

    Generated items are reasoning, tool calls, and assistant messages with `output_text` or `refusal` parts.
    Given items are messages of other roles, tool outputs, references, and assistant messages in short form
    (prompts use them for examples). If items have token ids, these decide: every item before the first model
    call with ids was given, even if a model once wrote it.
    """
    generated = [is_generated(item) for item in items]
    with_ids = (index for index, item in enumerate(items) if _field(item, _TOKENS) is not None)
    first = next(with_ids, None)
    if first is None:
        return generated.index(True) if True in generated else len(items)
    while first > 0 and generated[first - 1]:
        first -= 1
    return first


def is_generated(item: Any) -> bool:
    """Whether an item has the form of a generated item."""
    if _field(item, _TOKENS) is not None:
        return True
    kind = _field(item, "type")
    if kind == "message" or kind is None:
        return _field(item, "role") == "assistant" and _is_generated_content(_field(item, "content"))
    return kind != "item_reference" and not str(kind).endswith("_output")


def _is_generated_content(content: Any) -> bool:
    return isinstance(content, list) and any(_field(part, "type") in _GENERATED_PARTS for part in content)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)
