"""Converts message content, part by part, in both directions. Parts of unknown types are kept unchanged."""

from typing import Any

from nemo_gym.formats.conversion_error import FormatError

Part = dict[str, Any]


def chat_content(content: Any) -> str | list[Part]:
    """The content of a Responses message, or the output of a function, for a chat message."""
    if isinstance(content, str):
        return content
    return [chat_part(part, index) for index, part in enumerate(checked_parts(content))]


def responses_content(content: Any) -> str | list[Part]:
    """The content of a chat message that the model did not write, for a Responses item."""
    if isinstance(content, str):
        return content
    return [_responses_part(part, index) for index, part in enumerate(checked_parts(content))]


def checked_parts(content: Any) -> list[Any]:
    """`content` as a list of parts; raises FormatError if it is not a list."""
    if not isinstance(content, list):
        raise FormatError(f"its content must be a string or a list of parts, not {type(content).__name__}")
    return content


def checked_part(part: Any, index: int) -> Part:
    """`part` as a dict; raises FormatError if it is not an object."""
    if not isinstance(part, dict):
        raise FormatError(f"a part must be an object, not {type(part).__name__}", f"content[{index}]")
    return part


def text_of(part: Part, index: int, key: str = "text") -> str:
    """The text of a part; raises FormatError if it is missing."""
    text = part.get(key)
    if not isinstance(text, str):
        raise FormatError(f"a part of type {part.get('type')!r} needs a {key!r}", f"content[{index}]")
    return text


def chat_part(given: Any, index: int) -> Part:
    """One part of Responses content, for a chat message."""
    part = checked_part(given, index)
    kind = part.get("type")
    if kind in ("input_text", "text"):
        return {**part, "type": "text", "text": text_of(part, index)}
    if kind == "output_text":  # annotations and log-probabilities cannot be sent as input
        return {"type": "text", "text": text_of(part, index)}
    if kind == "input_image":
        return {"type": "image_url", "image_url": _image_url(part, index)}
    if kind == "input_file":
        return {"type": "file", "file": _without_type(part)}
    return part


def _responses_part(given: Any, index: int) -> Part:
    part = checked_part(given, index)
    kind = part.get("type")
    if kind == "text":
        return {**part, "type": "input_text", "text": text_of(part, index)}
    if kind == "image_url":
        image = part.get("image_url")
        if isinstance(image, str):  # the short form that many endpoints accept
            return {"type": "input_image", "image_url": image}
        if isinstance(image, dict) and isinstance(image.get("url"), str):
            others = {key: value for key, value in image.items() if key != "url" and value is not None}
            return {"type": "input_image", "image_url": image["url"], **others}
        raise FormatError('an image needs {"image_url": {"url": ...}}', f"content[{index}]")
    if kind == "file" and isinstance(part.get("file"), dict):
        return {"type": "input_file", **part["file"]}
    return part


def _image_url(part: Part, index: int) -> dict[str, Any]:
    url = part.get("image_url")
    if not isinstance(url, str):
        problem = "an image in a Chat Completions request is a URL; set 'image_url' instead of 'file_id'"
        raise FormatError(problem, f"content[{index}]")
    kept = _without_type(part)
    del kept["image_url"]
    return {"url": url, **kept}


def _without_type(part: Part) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "type" and value is not None}
