"""Conversion between the Responses API and Chat Completions: pure functions on plain data.

Invariant: a function never changes its arguments. Its result shares objects with them: token ids, tools and
texts are not copied.
"""

from .chat_requests import chat_request, responses_request
from .chat_style import ChatStyle
from .completion_to_response import output_items, response
from .conversation import first_generated
from .conversion_error import FormatError, RequestFormatError, ResponseFormatError
from .messages_to_items import items_from_messages
from .reasoning import ReasoningField, ReasoningStyle, ReasoningTags
from .response_to_completion import chat_completion

__all__ = [
    "ChatStyle",
    "FormatError",
    "ReasoningField",
    "ReasoningStyle",
    "ReasoningTags",
    "RequestFormatError",
    "ResponseFormatError",
    "chat_completion",
    "chat_request",
    "first_generated",
    "items_from_messages",
    "output_items",
    "response",
    "responses_request",
]
