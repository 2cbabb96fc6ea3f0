import json
from typing import Any

import pytest

from nemo_gym.openai_utils.streams import (
    BrokenStreamError,
    FailedStreamError,
    StreamError,
    chat_completion_from_chunks,
    events,
    response_from_events,
)


def chunk(delta: Any = None, finish: str | None = None, index: int = 0, **fields: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": {} if delta is None else delta, "finish_reason": finish}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice | fields],
    }


def only_choice(*chunks: dict[str, Any]) -> dict[str, Any]:
    (choice,) = chat_completion_from_chunks(chunks)["choices"]
    return choice


STOP = chunk(finish="stop")


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_are_read_with_any_line_ending(end: bytes) -> None:
    body = b'data: {"a": 1}\n\n: a comment\nid: 7\nretry: 5\ndata:{"b":\ndata: 2}\n\ndata: [DONE]\n\n'
    assert list(events(body.replace(b"\n", end))) == [{"a": 1}, {"b": 2}]


def test_byte_order_mark_and_keep_alive_comments_are_skipped() -> None:
    assert list(events(b'\xef\xbb\xbf: ping\n\n: ping\n\ndata: {"a": "\xe2\x80\xa8"}\n\n')) == [
        {"a": "\u2028"}
    ]


def test_events_after_done_are_ignored() -> None:
    assert list(events(b'data: {"a": 1}\n\ndata: [DONE]\n\ndata: {"b": 2}\n\n')) == [{"a": 1}]


def test_last_event_may_lack_its_blank_line() -> None:
    assert list(events(b'data: {"a": 1}\n\ndata: {"b": 2}')) == [{"a": 1}, {"b": 2}]
    assert list(events(b'data: {"a": 1}\n\ndata: [DONE]')) == [{"a": 1}]


def test_truncated_event_is_a_broken_stream() -> None:
    with pytest.raises(BrokenStreamError, match="ended within an event"):
        list(events(b'data: {"a": 1}\n\ndata: {"b": '))


@pytest.mark.parametrize("data", ["<html>", "[1]", "7"])
def test_event_that_is_not_an_object_is_an_error(data: str) -> None:
    with pytest.raises(StreamError, match="stream is not") as raised:
        list(events(f"data: {data}\n\n".encode()))
    assert not isinstance(raised.value, BrokenStreamError)


def test_event_name_is_its_type_if_the_data_has_none() -> None:
    body = b'event: error\ndata: {"message": "m"}\n\nevent: chunk\ndata: {"a": 1}\n\n'
    assert list(events(body)) == [{"type": "error", "message": "m"}, {"a": 1}]


def test_text_reasoning_and_refusal_are_joined() -> None:
    completion = chat_completion_from_chunks(
        [
            chunk({"role": "assistant", "content": "", "reasoning_content": "h"}),
            chunk({"role": "assistant", "reasoning_content": "m", "reasoning": "a"}),
            chunk({"content": "Hello", "reasoning": "b"}),
            chunk({"content": ", you", "refusal": "no"}),
            chunk({"refusal": "pe"}),
            STOP,
        ]
    )
    message = completion["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "Hello, you",
        "reasoning_content": "hm",
        "reasoning": "ab",
        "refusal": "nope",
    }
    assert (completion["id"], completion["object"], completion["model"]) == ("c", "chat.completion", "m")
    assert completion["choices"][0]["finish_reason"] == "stop"


def test_fragments_of_calls_are_joined_by_index() -> None:
    def call(index: int, **fields: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [{"index": index, **fields}]})

    message = only_choice(
        call(0, id="a", type="function", function={"name": "f", "arguments": ""}),
        call(0, function={"arguments": '{"x":'}),
        call(1, id="b", type="function", function={"name": "g", "arguments": "{}"}),
        call(0, id="a", type="function", function={"name": "f", "arguments": " 1}"}),
        call(2, id="c", type="custom", custom={"name": "h", "input": "in"}),
        call(2, custom={"input": "put"}),
        chunk(finish="tool_calls"),
    )["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        {"id": "c", "type": "custom", "custom": {"name": "h", "input": "input"}},
    ]


def test_without_an_index_a_new_id_begins_a_new_call() -> None:
    fragments: list[dict[str, Any]] = [
        {"id": "a", "function": {"name": "f", "arguments": "{"}},
        {"function": {"arguments": "}"}},
        {"id": "b", "function": {"name": "g"}},
    ]
    calls = only_choice(*(chunk({"tool_calls": [one]}) for one in fragments), STOP)["message"]["tool_calls"]
    assert calls == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": ""}},
    ]


def test_choices_stay_separate_and_in_order() -> None:
    chunks = [chunk({"content": "b"}, index=1), chunk({"content": "a"}), chunk({"content": "B"}, index=1)]
    completion = chat_completion_from_chunks([*chunks, chunk(finish="length", index=1), STOP])
    found = [(one["index"], one["message"]["content"], one["finish_reason"]) for one in completion["choices"]]
    assert found == [(0, "a", "stop"), (1, "bB", "length")]


def test_log_probabilities_and_token_ids_are_appended() -> None:
    def token(number: int) -> dict[str, Any]:
        return {"token": str(number), "logprob": -number}

    first = chunk({"content": "a"}, logprobs={"content": [token(1)], "refusal": None}, token_ids=[1])
    second = chunk({"content": "b"}, logprobs={"content": [token(2), token(3)]}, token_ids=[2, 3])
    last = chunk(finish="stop", logprobs=None, token_ids=None, stop_reason=7)
    completion = chat_completion_from_chunks([first | {"prompt_token_ids": [9]}, second, last])
    (choice,) = completion["choices"]
    assert choice["logprobs"] == {"content": [token(1), token(2), token(3)], "refusal": None}
    assert (choice["token_ids"], completion["prompt_token_ids"], choice["stop_reason"]) == ([1, 2, 3], [9], 7)


def test_token_fields_on_the_message_are_joined() -> None:
    fixed = {"prompt_token_ids": [8, 9], "generation_log_probs_mode": "raw_logprobs"}
    message = only_choice(
        chunk({**fixed, "generation_token_ids": [1], "generation_log_probs": [-0.1]}),
        chunk({**fixed, "generation_token_ids": [2], "generation_log_probs": [-0.2]}),
        STOP,
    )["message"]
    assert (
        message.items()
        >= {**fixed, "generation_token_ids": [1, 2], "generation_log_probs": [-0.1, -0.2]}.items()
    )


def test_usage_comes_from_the_last_chunk_and_unknown_fields_are_kept() -> None:
    chunks = [
        chunk({"content": "a"}) | {"usage": None, "vendor": {"x": 1}},
        STOP | {"usage": {"total_tokens": 1}},
        {"id": "c", "choices": [], "usage": {"total_tokens": 2}, "system_fingerprint": "fp"},
    ]
    completion = chat_completion_from_chunks(chunks)
    assert (completion["usage"], completion["vendor"]) == ({"total_tokens": 2}, {"x": 1})
    assert completion["system_fingerprint"] == "fp"


def test_chunks_are_not_changed() -> None:
    chunks = [chunk({"content": "a"}, token_ids=[1]), chunk({"content": "b"}, "stop", token_ids=[2])]
    before = json.dumps(chunks)
    chat_completion_from_chunks(chunks)
    assert json.dumps(chunks) == before


def test_complete_message_in_a_stream_is_used_once() -> None:
    whole = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    assert only_choice({"choices": [whole]})["message"]["content"] == "hi"
    repeated = only_choice(chunk({"content": "hi"}), {"choices": [whole]})
    assert repeated["message"]["content"] == "hi"


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [chunk({"content": "half an ans"})],
        [{"choices": [], "usage": {"total_tokens": 2}}],
        [STOP, chunk({"content": "b"}, index=1)],
    ],
)
def test_chat_stream_that_ends_early_is_not_a_completion(chunks: list[dict[str, Any]]) -> None:
    with pytest.raises(BrokenStreamError, match="the stream ended"):
        chat_completion_from_chunks(chunks)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"error": {"message": "boom", "code": 500}}, {"message": "boom", "code": 500}),
        ({"object": "error", "message": "boom", "code": 400}, {"message": "boom", "code": 400}),
        ({"type": "error", "sequence_number": 3, "message": "boom"}, {"message": "boom"}),
    ],
)
def test_error_event_is_raised_with_its_error(event: dict[str, Any], error: dict[str, Any]) -> None:
    for assemble in (chat_completion_from_chunks, response_from_events):
        with pytest.raises(FailedStreamError, match="boom") as raised:
            assemble([event])
        assert raised.value.error == error


@pytest.mark.parametrize(
    "bad",
    [
        {"choices": {}},
        {"choices": [7]},
        {"choices": [{"index": "x"}]},
        {"choices": [{"delta": "text"}]},
        {"choices": [{"delta": {"tool_calls": {}}}]},
        {"choices": [{"delta": {"tool_calls": [1]}}]},
        {"choices": [{"delta": {}, "logprobs": [1]}]},
    ],
)
def test_malformed_chunk_is_rejected(bad: dict[str, Any]) -> None:
    with pytest.raises(StreamError, match="in the stream must"):
        chat_completion_from_chunks([bad, STOP])


@pytest.mark.parametrize("end", ["completed", "incomplete", "failed"])
def test_response_is_that_of_the_last_event(end: str) -> None:
    whole = {"id": "r", "status": end, "output": [{"type": "message"}]}
    stream = [
        {"type": "response.created", "response": {"id": "r", "output": []}},
        {"type": "response.output_text.delta", "delta": "h"},
        {"type": f"response.{end}", "response": whole},
    ]
    assert response_from_events(stream) == whole


def test_items_from_earlier_events_are_in_the_response() -> None:
    stream = [
        {"type": "response.output_item.done", "output_index": 1, "item": {"id": "b"}},
        {"type": "response.output_item.done", "output_index": 0, "item": {"id": "a"}},
        {"type": "response.completed", "response": {"id": "r", "output": []}},
    ]
    assert response_from_events(stream)["output"] == [{"id": "a"}, {"id": "b"}]


def test_response_stream_that_ends_early_is_not_a_response() -> None:
    stream = [{"type": "response.output_item.done", "output_index": 0, "item": {"id": "a"}}]
    with pytest.raises(BrokenStreamError, match="the stream ended"):
        response_from_events(stream)


def test_last_event_without_a_response_is_rejected() -> None:
    with pytest.raises(StreamError, match="not an object"):
        response_from_events([{"type": "response.completed"}])
