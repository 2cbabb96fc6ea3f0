"""Where in a whole conversation the model began to generate. Items may be models or plain data."""

from collections.abc import Sequence
from typing import Any

_TOKENS = "generation_token_ids"
_WRITTEN = ("output_text", "refusal")


def first_generated(items: Sequence[Any]) -> int:
    """The index of the first item that the model generated; their number if it generated none.

    Generated are reasoning, calls of any tool, and assistant messages in the form of an answer: with parts of
    type `output_text` or `refusal`. Given are messages of other roles, what tools answered, references, and
    assistant messages in short form, with which prompts show examples. Where items carry token ids, these
    settle it: what stands before the first model call with ids was given, even if a model once wrote it.
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
    """Whether an item has the form of what models generate."""
    if _field(item, _TOKENS) is not None:
        return True
    kind = _field(item, "type")
    if kind == "message" or kind is None:
        return _field(item, "role") == "assistant" and _is_written(_field(item, "content"))
    return kind != "item_reference" and not str(kind).endswith("_output")


def _is_written(content: Any) -> bool:
    return isinstance(content, list) and any(_field(part, "type") in _WRITTEN for part in content)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)
