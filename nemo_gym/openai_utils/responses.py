"""The request and the response of the Responses API.

In a response only `output` is required; in a request only `input`. Objects in a response are models, read by
attribute; objects in a request are dicts, as in OpenAI's own library.
"""

from typing import Annotated, Literal

from pydantic import Field

from .responses_items import (
    NeMoGymResponseInput,
    NeMoGymResponseOutputItem,
    NeMoGymResponseOutputMessage,
)
from .responses_parts import NeMoGymResponseOutputText
from .tool_models import NeMoGymFunctionToolParam, pick_tool
from .usage_models import NeMoGymResponseUsage
from .wire_model import (
    JsonObject,
    Number,
    Picked,
    TextOrDict,
    TextOrObject,
    WireModel,
    WireObject,
    text_or_list,
)

_TextOrItems = Annotated[
    str | NeMoGymResponseInput,
    Picked(text_or_list, {"text": str, "list": NeMoGymResponseInput}, "a string or a list of items"),
]
_Tool = Annotated[
    NeMoGymFunctionToolParam | JsonObject,
    Picked(pick_tool, {"function": NeMoGymFunctionToolParam, "tool": JsonObject}, "an object"),
]


class NeMoGymResponseError(WireModel):
    code: str | int | None = None
    message: str | None = None


class NeMoGymIncompleteDetails(WireModel):
    reason: str | None = None


class NeMoGymResponse(WireModel):
    id: str | None = None
    created_at: Number | None = None
    model: str | None = None
    object: str = "response"
    output: list[NeMoGymResponseOutputItem]
    status: str | None = None
    error: NeMoGymResponseError | None = None
    incomplete_details: NeMoGymIncompleteDetails | None = None
    usage: NeMoGymResponseUsage | None = None
    parallel_tool_calls: bool | None = True
    tool_choice: TextOrObject | None = "auto"
    tools: list[WireObject] | None = Field(default_factory=list)
    reasoning: WireObject | None = None
    text: WireObject | None = None

    _rare = frozenset(
        {
            "access_programs",
            "background",
            "completed_at",
            "conversation",
            "image",
            "instructions",
            "max_output_tokens",
            "max_tool_calls",
            "metadata",
            "moderation",
            "previous_response_id",
            "prompt",
            "prompt_cache_diagnostics",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "temperature",
            "tool_usage",
            "top_logprobs",
            "top_p",
            "truncation",
            "user",
        }
    )

    @property
    def output_text(self) -> str:
        """The text of all messages in `output`, joined."""
        return "".join(
            part.text
            for item in self.output
            if isinstance(item, NeMoGymResponseOutputMessage)
            for part in item.content
            if isinstance(part, NeMoGymResponseOutputText)
        )


class NeMoGymResponseCreateParamsNonStreaming(WireModel):
    input: _TextOrItems
    model: str | None = None
    instructions: str | None = None
    tools: list[_Tool] | None = Field(default_factory=list)
    tool_choice: TextOrDict | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_logprobs: int | None = None
    seed: int | None = None
    """Not in OpenAI's API; engines with reproducible sampling accept it."""
    reasoning: JsonObject | None = None
    text: JsonObject | None = None
    metadata: JsonObject | None = None
    stream: Literal[False] | None = None

    _rare = frozenset(
        {
            "access_programs",
            "background",
            "context_management",
            "conversation",
            "image",
            "include",
            "max_tool_calls",
            "moderation",
            "previous_response_id",
            "prompt",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "store",
            "stream_options",
            "truncation",
            "user",
        }
    )
