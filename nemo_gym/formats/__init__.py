"""Wire formats, to and from Responses: pure functions on plain data.

Invariant: what a function is given stays as it is. Its result shares objects with that: neither token ids nor
tools nor texts are copied.
"""

from .chat_answers import answer_items, response
from .chat_requests import chat_request, responses_request
from .conversation import first_generated
from .dialect import Dialect
from .errors import AnswerFormatError, FormatError, RequestFormatError
from .reasoning import ReasoningField, ReasoningStyle, ReasoningTags
from .response_answers import chat_completion
from .response_items import items_from_messages

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
