"""The request of the Chat Completions API and its response, the chat completion.

In a completion only `choices` and the message of each are required; in a request only `messages`. Objects in
a completion are models, read by attribute; objects in a request are dicts.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from .chat_message_models import NeMoGymChatCompletionMessageParam
from .tool_models import NeMoGymChatCompletionToolParam, pick_tool
from .wire_model import (
    JsonObject,
    Number,
    Picked,
    TextOrDict,
    TokenIDLogProbMixin,
    WireModel,
    WireObject,
    has_tokens,
    member_of_instance,
    text_or_list,
)


class NeMoGymFunction(WireModel):
    """The function that is called; `arguments` is JSON in a string."""

    arguments: str
    name: str


class NeMoGymChatCompletionMessageToolCall(WireModel):
    """A function call of the model."""

    id: str | None = None
    function: NeMoGymFunction
    type: Literal["function"] | None = "function"


class NeMoGymChatCompletionMessageOtherToolCall(WireModel):
    """A call of a tool that is not a function, such as a `custom` tool."""

    id: str | None = None
    type: str


_CALLS: dict[str, type[WireModel]] = {
    "function": NeMoGymChatCompletionMessageToolCall,
    "call": NeMoGymChatCompletionMessageOtherToolCall,
}
_CALL_NAMES: dict[type, str] = {cls: name for name, cls in _CALLS.items()}


def _pick_call(call: object) -> str | None:
    if not isinstance(call, dict):
        return member_of_instance(call, _CALL_NAMES)
    return "function" if call.get("type") in ("function", None) else "call"


_ToolCall = Annotated[
    NeMoGymChatCompletionMessageToolCall | NeMoGymChatCompletionMessageOtherToolCall,
    Picked(_pick_call, _CALLS, "a tool call"),
]


class NeMoGymChatCompletionMessage(WireModel):
    """A message that the model generated: text, tool calls, or both."""

    content: str | None = None
    role: Literal["assistant"] = "assistant"
    tool_calls: list[_ToolCall] | None = None

    _rare = frozenset({"annotations", "audio", "function_call", "refusal"})


class NeMoGymChatCompletionMessageForTraining(NeMoGymChatCompletionMessage, TokenIDLogProbMixin):
    """With the token ids and log-probabilities of its generation."""


_MESSAGES: dict[str, type[WireModel]] = {
    "message": NeMoGymChatCompletionMessage,
    "message_for_training": NeMoGymChatCompletionMessageForTraining,
}
_MESSAGE_NAMES: dict[type, str] = {cls: name for name, cls in _MESSAGES.items()}


def _pick_message(message: object) -> str | None:
    if not isinstance(message, dict):
        return member_of_instance(message, _MESSAGE_NAMES)
    return "message_for_training" if has_tokens(message) else "message"


_Message = Annotated[
    NeMoGymChatCompletionMessage | NeMoGymChatCompletionMessageForTraining,
    Picked(_pick_message, _MESSAGES, "a message"),
]


class NeMoGymChoiceLogprobs(WireModel):
    content: list[WireObject] | None = None
    refusal: list[WireObject] | None = None


class NeMoGymChoice(WireModel):
    finish_reason: str | None = None
    index: int = 0
    logprobs: NeMoGymChoiceLogprobs | None = None
    message: _Message


class NeMoGymPromptTokensDetails(WireModel):
    cached_tokens: int | None = None


class NeMoGymCompletionTokensDetails(WireModel):
    reasoning_tokens: int | None = None


class NeMoGymCompletionUsage(WireModel):
    completion_tokens: int = 0
    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens_details: NeMoGymCompletionTokensDetails | None = None
    prompt_tokens_details: NeMoGymPromptTokensDetails | None = None


class NeMoGymChatCompletion(WireModel):
    id: str | None = None
    choices: list[NeMoGymChoice]
    created: Number | None = None
    model: str | None = None
    object: str = "chat.completion"
    usage: NeMoGymCompletionUsage | None = None

    _rare = frozenset({"metadata", "moderation", "service_tier", "system_fingerprint"})


_Stop = Annotated[
    str | list[str], Picked(text_or_list, {"text": str, "list": list[str]}, "a string or a list of strings")
]
_Tool = Annotated[
    NeMoGymChatCompletionToolParam | JsonObject,
    Picked(pick_tool, {"function": NeMoGymChatCompletionToolParam, "tool": JsonObject}, "an object"),
]


class NeMoGymChatCompletionCreateParamsNonStreaming(WireModel):
    # Built at first use, not at import: it is the slowest model to build, and many runs never use it.
    model_config = ConfigDict(defer_build=True)

    messages: list[NeMoGymChatCompletionMessageParam]
    model: str | None = None
    tools: list[_Tool] | None = Field(default_factory=list)
    tool_choice: TextOrDict | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    seed: int | None = None
    stop: _Stop | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, Number] | None = None
    response_format: JsonObject | None = None
    reasoning_effort: str | None = None
    metadata: JsonObject | None = None
    stream: Literal[False] | None = None

    _rare = frozenset(
        {
            "audio",
            "function_call",
            "functions",
            "modalities",
            "moderation",
            "prediction",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "store",
            "stream_options",
            "user",
            "verbosity",
            "web_search_options",
        }
    )
