"""Requests, completions and responses that a conversion and its inverse leave unchanged.

`nemo_gym.formats.chat_requests` and `nemo_gym.formats.completion_to_response` describe this subset.
"""

from typing import Any

from hypothesis import strategies as st

from nemo_gym.formats import ChatStyle, ReasoningField, ReasoningTags

Strategy = st.SearchStrategy[Any]

CHAT_STYLES = [ChatStyle(style, sends_tokens=True) for style in (ReasoningField(), ReasoningTags())]
LOG_PROBS = ["message.output_text.logprobs"]

_WORDS = st.sampled_from(["a", "Zwölf", "x\n", " y ", "{}", "日本", "<tool_call>"])
texts = st.lists(_WORDS, min_size=1, max_size=3).map("".join)
_NAMES = st.sampled_from(["add", "look_up"])
_IDS = st.integers(0, 99).map("call_{}".format)
_JSON = st.fixed_dictionaries({"type": st.just("object")}, optional={"default": st.none(), "x": texts})


def _optional(**fields: Strategy) -> Strategy:
    return st.fixed_dictionaries({}, optional=fields)


def _lists(strategy: Strategy, least: int = 1) -> Strategy:
    return st.lists(strategy, min_size=least, max_size=3)


tokens = st.one_of(
    st.just({}),
    st.builds(
        lambda count, mode: {
            "prompt_token_ids": list(range(count)),
            "generation_token_ids": [7] * count,
            "generation_log_probs": [-0.5] * count,
            **mode,
        },
        st.integers(0, 3),
        _optional(generation_log_probs_mode=st.sampled_from(["raw_logprobs", "processed_logprobs"])),
    ),
)
_same_options = _optional(
    model=texts,
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    seed=st.integers(),
    metadata=st.dictionaries(texts, texts, max_size=2),
    user=texts,
    store=st.booleans(),
    stop=_lists(texts),
    top_k=st.integers(1, 9),
)
_function = st.fixed_dictionaries(
    {"name": _NAMES}, optional={"description": texts, "parameters": _JSON, "strict": st.booleans()}
)
_schema = st.fixed_dictionaries(
    {"name": texts, "schema": _JSON}, optional={"strict": st.booleans(), "description": texts}
)
_plain_format = st.sampled_from([{"type": "text"}, {"type": "json_object"}])
_choice_word = st.sampled_from(["auto", "none", "required"])
_verbosity = st.sampled_from(["low", "high"])


# Content parts of users and tools: in Responses and in Chat Completions.
_image = st.fixed_dictionaries({"url": texts}, optional={"detail": st.just("low")})
_file = st.fixed_dictionaries({"file_data": texts}, optional={"filename": texts})
_same_part = st.sampled_from(
    [
        {"type": "input_audio", "input_audio": {"data": "d", "format": "wav"}},
        {"type": "video_url", "url": "u"},
    ]
)
_chat_part = st.one_of(
    texts.map(lambda text: {"type": "text", "text": text}),
    _image.map(lambda image: {"type": "image_url", "image_url": image}),
    _file.map(lambda file: {"type": "file", "file": file}),
    _same_part,
)
_responses_part = st.one_of(
    texts.map(lambda text: {"type": "input_text", "text": text}),
    _image.map(
        lambda image: {
            "type": "input_image",
            "image_url": image["url"],
            **{key: value for key, value in image.items() if key != "url"},
        }
    ),
    _file.map(lambda file: {"type": "input_file", **file}),
    _same_part,
)
_roles = st.sampled_from(["system", "developer", "user"])


def _flat(mapping: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", **mapping}


def _nested(mapping: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": mapping}


@st.composite
def _model_items(draw: st.DrawFn, *, in_output: bool = False) -> list[dict[str, Any]]:
    """The items of one model call."""
    text, reasoning = draw(st.none() | texts), draw(st.none() | texts)
    refusal = draw(st.none() | texts)
    calls = draw(st.lists(st.tuples(_NAMES, _IDS), max_size=2))
    items: list[dict[str, Any]] = []
    if reasoning is not None:
        items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]})
    if not items and text is None and refusal is None and not calls:
        text = ""
    parts: list[dict[str, Any]] = []
    if text is not None:
        parts.append({"type": "output_text", "text": text, "annotations": []})
    if refusal is not None:
        parts.append({"type": "refusal", "refusal": refusal})
    if parts:
        items.append({"type": "message", "role": "assistant", "content": parts})
    for name, call_id in calls:
        items.append({"type": "function_call", "name": name, "arguments": "{}", "call_id": call_id})
    if in_output:
        for item in items:
            if item["type"] != "reasoning":
                item["status"] = "completed"
    items[-1].update(draw(tokens))
    return items


@st.composite
def _inputs(draw: st.DrawFn) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 3))):
        content = draw(texts | _lists(_responses_part))
        items.append({"type": "message", "role": draw(_roles), "content": content})
        if draw(st.booleans()):
            turn = draw(_model_items())
            items += turn
            for item in turn:
                if item["type"] == "function_call":
                    output = draw(texts | _lists(_responses_part))
                    items.append(
                        {"type": "function_call_output", "call_id": item["call_id"], "output": output}
                    )
    return items


@st.composite
def assistant_messages(draw: st.DrawFn, chat_style: ChatStyle, *, in_output: bool = False) -> dict[str, Any]:
    """One assistant message."""
    text, reasoning = draw(st.none() | texts), draw(st.none() | texts)
    calls = draw(st.lists(st.tuples(_NAMES, _IDS), max_size=2))
    refusal = draw(st.none() | texts)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if text is None and not calls and refusal is None and not (in_output and reasoning is not None):
        message["content"] = ""
    if reasoning is not None:
        chat_style.reasoning.write(message, reasoning, is_truncated=draw(st.booleans()))
    if refusal is not None:
        message["refusal"] = refusal
    if calls:
        message["tool_calls"] = [
            {"id": call_id, **_nested({"name": name, "arguments": "{}"})} for name, call_id in calls
        ]
    return {**message, **draw(tokens)}


@st.composite
def _messages(draw: st.DrawFn, chat_style: ChatStyle) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 3))):
        message = {"role": draw(_roles), "content": draw(texts | _lists(_chat_part))}
        messages.append(message | draw(_optional(name=texts)))
        if draw(st.booleans()):
            turn = draw(assistant_messages(chat_style))
            messages.append(turn)
            for call in turn.get("tool_calls", ()):
                content = draw(texts | _lists(_chat_part))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return messages


@st.composite
def responses_requests(draw: st.DrawFn) -> dict[str, Any]:
    params = {"input": draw(_inputs()), **draw(_same_options)}
    if draw(st.booleans()):
        named = _NAMES.map(lambda name: _flat({"name": name}))
        params["tools"] = draw(_lists(_function.map(_flat)))
        params |= draw(_optional(tool_choice=_choice_word | named, parallel_tool_calls=st.booleans()))
    schema = _schema.map(lambda schema: {"type": "json_schema", **schema})
    if text := draw(_optional(format=schema | _plain_format, verbosity=_verbosity)):
        params["text"] = text
    if draw(st.booleans()):
        params |= {"include": LOG_PROBS, **draw(_optional(top_logprobs=st.integers(0, 5)))}
    effort = st.sampled_from(["low", "high"]).map(lambda effort: {"effort": effort})
    return params | draw(_optional(max_output_tokens=st.integers(1, 99), reasoning=effort))


@st.composite
def chat_requests(draw: st.DrawFn, chat_style: ChatStyle) -> dict[str, Any]:
    chat = {"messages": draw(_messages(chat_style)), **draw(_same_options)}
    if draw(st.booleans()):
        named = _NAMES.map(lambda name: _nested({"name": name}))
        chat["tools"] = draw(_lists(_function.map(_nested)))
        chat |= draw(_optional(tool_choice=_choice_word | named, parallel_tool_calls=st.booleans()))
    if draw(st.booleans()):
        chat |= {"logprobs": True, **draw(_optional(top_logprobs=st.integers(0, 5)))}
    schema = _schema.map(lambda schema: {"type": "json_schema", "json_schema": schema})
    return chat | draw(
        _optional(
            response_format=schema | _plain_format,
            verbosity=_verbosity,
            reasoning_effort=st.sampled_from(["low", "high"]),
            max_completion_tokens=st.integers(1, 99),
        )
    )


_counts = st.integers(1, 99)
_log_probs = st.lists(
    st.just({"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}), min_size=1, max_size=2
)
_extras = _optional(system_fingerprint=texts, service_tier=st.just("flex"), other=_counts)


@st.composite
def completions(draw: st.DrawFn, chat_style: ChatStyle) -> dict[str, Any]:
    message = draw(assistant_messages(chat_style, in_output=True))
    finished = "tool_calls" if "tool_calls" in message else "stop"
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": draw(st.sampled_from([finished, "length", "content_filter"])),
        "logprobs": None,
    }
    usage = {
        "prompt_tokens": draw(_counts),
        "prompt_tokens_details": {"cached_tokens": draw(_counts), **draw(_optional(audio_tokens=_counts))},
        "completion_tokens": draw(_counts),
        "completion_tokens_details": {"reasoning_tokens": draw(_counts)},
        "total_tokens": draw(_counts),
        **draw(_optional(other=_counts)),
    }
    return {
        "id": draw(texts),
        "object": "chat.completion",
        "created": draw(_counts),
        "model": draw(texts),
        "choices": [choice],
        "usage": usage,
        **draw(_extras),
    }


@st.composite
def responses(draw: st.DrawFn, params: dict[str, Any]) -> dict[str, Any]:
    """Model responses to a request; their items have no ids."""
    items = draw(_model_items(in_output=True))
    reason = draw(st.sampled_from([None, "max_output_tokens", "content_filter"]))
    if reason and items[-1]["type"] != "reasoning":
        items[-1]["status"] = "incomplete"
    for item in items:
        part = item["content"][0] if item["type"] == "message" else {}
        if "include" in params and part.get("text"):
            part["logprobs"] = draw(_log_probs)
    echoed = ("metadata", "parallel_tool_calls", "reasoning", "text", "tool_choice", "tools", "top_p")
    return {
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **{key: params[key] for key in (*echoed, "max_output_tokens", "temperature") if key in params},
        "id": draw(texts),
        "object": "response",
        "created_at": draw(_counts),
        "model": draw(texts),
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": items,
        "usage": {
            "input_tokens": draw(_counts),
            "input_tokens_details": {"cached_tokens": draw(_counts)},
            "output_tokens": draw(_counts),
            "output_tokens_details": {"reasoning_tokens": draw(_counts)},
            "total_tokens": draw(_counts),
        },
        **draw(_extras),
    }
