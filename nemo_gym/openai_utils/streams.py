"""Assembles streamed events into the object that the endpoint would have sent without streaming. Pure.

It is here and not in `formats` because the endpoint client reads streams. Invariant: a stream that ends early
never counts as complete. A chat completion is complete when each of its choices has a finish reason; a model
response is complete when an event contains all of it.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from nemo_gym.codec import decode_json
from nemo_gym.errors import NeMoGymError
from nemo_gym.types import LOG_PROBS_MODE_KEY_NAME

Event = dict[str, Any]

_DONE = b"[DONE]"
_BOM = b"\xef\xbb\xbf"
_WHOLE_RESPONSE = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_NOT_FRAGMENTED = frozenset(
    ("role", "id", "type", "name", "index", "format", "phase", "prompt_token_ids", LOG_PROBS_MODE_KEY_NAME)
)
"""Fields that are never sent in fragments; some endpoints repeat them in every chunk."""


class StreamError(NeMoGymError, ValueError):
    """A stream that cannot be assembled."""


class BrokenStreamError(StreamError):
    """A stream that ended early; a retry may succeed."""


class FailedStreamError(StreamError):
    """A stream in which the endpoint reports an error; `error` is that error."""

    def __init__(self, error: Any) -> None:
        super().__init__(f"the endpoint reported an error within the stream: {error}")
        self.error = error


def events(body: bytes) -> Iterator[Event]:
    """The objects of a stream of server-sent events, up to `[DONE]`."""
    for event in _raw_events(body):
        if event.data.strip() == _DONE:
            return
        data = _decoded(event)
        if "type" not in data and (event.name == "error" or event.name.startswith("response.")):
            data = {"type": event.name, **data}
        yield data


class _RawEvent:
    """One event as it was sent; `is_ended` if a blank line follows it."""

    __slots__ = ("data", "is_ended", "name")

    def __init__(self, name: str, data: bytes, *, is_ended: bool) -> None:
        self.name = name
        self.data = data
        self.is_ended = is_ended


def _raw_events(body: bytes) -> Iterator[_RawEvent]:
    lines = body.removeprefix(_BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    name = ""
    data: list[bytes] = []
    for line in lines:
        if not line:
            if data:
                yield _RawEvent(name, b"\n".join(data), is_ended=True)
            name, data = "", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    if data:  # many servers omit the blank line after the last event
        yield _RawEvent(name, b"\n".join(data), is_ended=False)


def _decoded(event: _RawEvent) -> Event:
    try:
        data = decode_json(event.data)
    except (ValueError, RecursionError):
        shown = event.data[:200].decode("utf-8", "replace")
        if not event.is_ended:
            raise BrokenStreamError(f"the stream ended within an event: {shown}") from None
        raise StreamError(f"an event of the stream is not JSON: {shown}") from None
    if not isinstance(data, dict):
        raise StreamError(f"an event of the stream is not an object: {str(data)[:200]}")
    return data


def response_from_events(stream: Iterable[Event]) -> Event:
    """The model response of a stream of the Responses API."""
    items: dict[int, Any] = {}
    for event in stream:
        kind = event.get("type")
        if kind in _WHOLE_RESPONSE:
            return _whole_response(event.get("response"), items)
        if kind == "response.output_item.done":
            items[_index(event.get("output_index"), len(items))] = event.get("item")
        else:
            _raise_error(event)
    raise BrokenStreamError("the stream ended before the response was complete")


def _whole_response(response: Any, items: dict[int, Any]) -> Event:
    if not isinstance(response, dict):
        raise StreamError(f"the response in the stream is not an object: {str(response)[:200]}")
    if not response.get("output") and items:  # some endpoints leave the items out of the last event
        return {**response, "output": [items[index] for index in sorted(items)]}
    return response


def _raise_error(event: Event) -> None:
    if event.get("error") is not None:
        raise FailedStreamError(event["error"])
    if event.get("type") == "error" or event.get("object") == "error":
        raise FailedStreamError(
            {key: value for key, value in event.items() if key not in ("type", "object", "sequence_number")}
        )


def chat_completion_from_chunks(chunks: Iterable[Event]) -> Event:
    """The chat completion of a stream of chunks."""
    fields = _Fragments()
    choices: dict[int, _Choice] = {}
    for chunk in chunks:
        _raise_error(chunk)
        for choice in _list(chunk.get("choices"), "choices"):
            index = _index(_object(choice, "choices").get("index"), 0)
            if index not in choices:
                choices[index] = _Choice()
            choices[index].add(choice)
        fields.replace({key: value for key, value in chunk.items() if key not in ("choices", "object")})
    if not choices or not all(choice.is_finished for choice in choices.values()):
        raise BrokenStreamError("the stream ended before the chat completion was complete")
    whole = [{"index": index, **choices[index].whole()} for index in sorted(choices)]
    return {"object": "chat.completion", **fields.whole(), "choices": whole}


class _Fragments:
    """An object that arrives in fragments. Texts are joined once, at the end: there may be one per token."""

    __slots__ = ("_texts", "_values")

    def __init__(self) -> None:
        self._values: Event = {}
        self._texts: dict[str, list[str]] = {}

    def replace(self, values: Event) -> None:
        """Later values replace earlier ones, unless they are null."""
        for key, value in values.items():
            if value is not None or key not in self._values:
                self._values[key] = value

    def extend(self, values: Event) -> None:
        """Later texts and lists are appended to earlier ones."""
        for key, value in values.items():
            before = self._values.get(key)
            if before is None or (before == "" and key in _NOT_FRAGMENTED):
                self._values[key] = list(value) if isinstance(value, list) else value
                if isinstance(value, str) and key not in _NOT_FRAGMENTED:
                    self._texts[key] = [value]
            elif value is None or key in _NOT_FRAGMENTED:
                continue
            elif isinstance(value, str) and key in self._texts:
                self._texts[key].append(value)
            elif isinstance(value, list) and isinstance(before, list):
                before.extend(value)
            else:
                self._values[key] = value

    @property
    def is_empty(self) -> bool:
        return not self._values

    def whole(self) -> Event:
        for key, texts in self._texts.items():
            self._values[key] = "".join(texts)
        return self._values


class _Choice:
    """One choice of a chat completion."""

    def __init__(self) -> None:
        self._fields = _Fragments()
        self._message = _Fragments()
        self._log_probs = _Fragments()
        self._calls: dict[int, _Call] = {}
        self._has_log_probs = False
        self.is_finished = False

    def add(self, choice: Event) -> None:
        for key, value in choice.items():
            if key == "delta":
                self._add_delta({} if value is None else _object(value, key))
            elif key == "message":  # some endpoints send the whole message, in one event or again at the end
                if value is not None and self._message.is_empty and not self._calls:
                    self._add_delta(_object(value, key))
            elif key == "logprobs":
                self._add_log_probs(value)
            elif key == "token_ids":
                self._fields.extend({key: value})
            elif key != "index":
                self._fields.replace({key: value})
        self.is_finished = self.is_finished or choice.get("finish_reason") is not None

    def _add_delta(self, delta: Event) -> None:
        self._message.extend({key: value for key, value in delta.items() if key != "tool_calls"})
        for fragment in _list(delta.get("tool_calls"), "tool_calls"):
            self._call_of(_object(fragment, "tool_calls")).add(fragment)

    def _call_of(self, fragment: Event) -> "_Call":
        """The call that a fragment belongs to. Without an index, a new id begins a new call."""
        last = max(self._calls, default=0)
        begins = last in self._calls and fragment.get("id") not in (None, "", self._calls[last].id)
        index = _index(fragment.get("index"), last + begins)
        return self._calls.setdefault(index, _Call())

    def _add_log_probs(self, log_probs: Any) -> None:
        if log_probs is not None:
            self._has_log_probs = True
            self._log_probs.extend(_object(log_probs, "logprobs"))

    def whole(self) -> Event:
        message = {"role": "assistant", "content": None, **self._message.whole()}
        if self._calls:
            message["tool_calls"] = [self._calls[index].whole() for index in sorted(self._calls)]
        log_probs = self._log_probs.whole() if self._has_log_probs else None
        return {**self._fields.whole(), "message": message, "logprobs": log_probs}


class _Call:
    """One tool call; its arguments, or the input of a custom tool, arrive in fragments."""

    def __init__(self) -> None:
        self._fields = _Fragments()
        self._parts: dict[str, _Fragments] = {}

    @property
    def id(self) -> str | None:
        """None until it has arrived."""
        call_id: str | None = self._fields.whole().get("id")
        return call_id

    def add(self, fragment: Event) -> None:
        for key, value in fragment.items():
            if isinstance(value, dict):
                self._parts.setdefault(key, _Fragments()).extend(value)
            elif key != "index":
                self._fields.extend({key: value})

    def whole(self) -> Event:
        fields = self._fields.whole()
        if "function" in self._parts:
            self._parts["function"].extend({"arguments": ""})
            fields = {**fields, "type": fields.get("type") or "function"}
        return {**fields, **{key: part.whole() for key, part in self._parts.items()}}


def _index(value: Any, default: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int):
        raise StreamError(f"an index in the stream must be an integer, not {value!r}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise StreamError(f"{where} in the stream must be a list, not {type(value).__name__}")
    return value


def _object(value: Any, where: str) -> Event:
    if not isinstance(value, dict):
        raise StreamError(f"{where} in the stream must contain objects, not {type(value).__name__}")
    return value
