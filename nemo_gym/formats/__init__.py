"""Wire formats, to and from Responses: pure functions on plain data.

Invariant: what a function is given stays as it is. Its result shares objects with that: neither token ids nor
tools nor texts are copied.
"""

from .chat_requests import chat_request, responses_request
from .completion_to_response import answer_items, response
from .conversation import first_generated
from .conversion_error import AnswerFormatError, FormatError, RequestFormatError
from .dialect import Dialect
from .messages_to_items import items_from_messages
from .reasoning import ReasoningField, ReasoningStyle, ReasoningTags
from .response_to_completion import chat_completion

__all__ = [
    "AnswerFormatError",
    "Dialect",
    "FormatError",
    "ReasoningField",
    "ReasoningStyle",
    "ReasoningTags",
    "RequestFormatError",
    "answer_items",
    "chat_completion",
    "chat_request",
    "first_generated",
    "items_from_messages",
    "response",
    "responses_request",
]
