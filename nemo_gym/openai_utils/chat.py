"""The request and the answer of the Chat Completions API.

Of an answer only `choices` and the message in each must be there; of a request only `messages`. Objects
inside an answer are read by attribute, those inside a request are dicts.
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
    """Which function is called; `arguments` is JSON in a string."""

    arguments: str
    name: str


class NeMoGymChatCompletionMessageToolCall(WireModel):
    """The model's call of a function."""

    id: str | None = None
    function: NeMoGymFunction
    type: Literal["function"] | None = "function"


class NeMoGymChatCompletionMessageOtherToolCall(WireModel):
    """The model's call of a tool that is no function, such as a `custom` one."""

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
    Picked(_pick_call, _CALLS, "a call of a tool"),
]


class NeMoGymChatCompletionMessage(WireModel):
    """What the model answered: text, calls of tools, or both."""

    content: str | None = None
    role: Literal["assistant"] = "assistant"
    tool_calls: list[_ToolCall] | None = None

    _rare = frozenset({"annotations", "audio", "function_call", "refusal"})


class NeMoGymChatCompletionMessageForTraining(NeMoGymChatCompletionMessage, TokenIDLogProbMixin):
    """With the tokens of its generation."""


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
    # The costliest model to build, and many a run never uses it: built at its first use, not at import.
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
