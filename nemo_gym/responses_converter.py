"""The published face of the converters between Responses and Chat Completions, both ways.

The converters work on plain data; the methods under older names take and give models.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from nemo_gym import formats
from nemo_gym.formats import AnswerFormatError, FormatError, RequestFormatError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChoice,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputItem,
)

__all__ = [
    "AnswerFormatError",
    "FormatError",
    "RequestFormatError",
    "ResponsesConverter",
    "VLLMConverter",
    "split_responses_input_output_items",
]


class ResponsesConverter:
    """Converts for one endpoint.

    A request that cannot be converted is a RequestFormatError, an answer that cannot be read an
    AnswerFormatError.
    """

    def __init__(
        self, *, uses_reasoning_parser: bool = True, return_token_id_information: bool = False
    ) -> None:
        """`uses_reasoning_parser`: the endpoint separates reasoning into a field of its own; else reasoning
        stands in the text, between <think> and </think>. `return_token_id_information`: the history in
        requests carries token fields; answers always do if they have them.
        """
        self.uses_reasoning_parser = uses_reasoning_parser
        self.return_token_id_information = return_token_id_information
        style: formats.ReasoningStyle = (
            formats.ReasoningField() if uses_reasoning_parser else formats.ReasoningTags()
        )
        self._dialect = formats.Dialect(style, return_token_id_information)

    def chat_request(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """A Responses request as a Chat Completions request."""
        return formats.chat_request(params, self._dialect)

    def responses_request(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        """A Chat Completions request as a Responses request."""
        return formats.responses_request(chat, self._dialect)

    def response(self, completion: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """A Chat Completions answer as a Response to the Responses request `params`."""
        return formats.response(completion, params, self._dialect.reasoning)

    def chat_completion(self, response: Mapping[str, Any]) -> dict[str, Any]:
        """A Response of one model call as a Chat Completions answer."""
        return formats.chat_completion(response, self._dialect.reasoning)

    def responses_to_chat_completion_create_params(
        self, responses_create_params: NeMoGymResponseCreateParamsNonStreaming | Mapping[str, Any]
    ) -> NeMoGymChatCompletionCreateParamsNonStreaming:
        """`chat_request` with models."""
        chat = self.chat_request(_plain(responses_create_params))
        return NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(chat)

    def chat_completions_messages_to_responses_items(
        self, messages: Sequence[BaseModel | Mapping[str, Any]]
    ) -> list[NeMoGymResponseInputItem]:
        """Chat messages as items, with the token fields that they carry."""
        items = formats.items_from_messages(
            [_plain(message) for message in messages], self._dialect.reasoning, with_tokens=True
        )
        return _input_items().validate_python(items)

    def postprocess_chat_response(
        self, choice: NeMoGymChoice | Mapping[str, Any]
    ) -> list[NeMoGymResponseOutputItem]:
        """What one choice of a Chat Completions answer says, as output items, without log-probabilities of
        the text."""
        items = formats.answer_items(_plain(choice), self._dialect.reasoning, with_log_probs=False)
        return _output_items().validate_python(items)


class VLLMConverter(ResponsesConverter):
    """Converts for vLLM, which leaves reasoning in the text unless it is started with a reasoning parser."""

    def __init__(
        self, *, uses_reasoning_parser: bool = False, return_token_id_information: bool = False
    ) -> None:
        super().__init__(
            uses_reasoning_parser=uses_reasoning_parser,
            return_token_id_information=return_token_id_information,
        )


def split_responses_input_output_items(items: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The items of a whole conversation, models or plain data: those given, and all from the first one that
    the model generated on (`nemo_gym.formats.first_generated` says how that is told)."""
    first = formats.first_generated(items)
    return list(items[:first]), list(items[first:])


def _plain(value: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    # With what was not set: it tells the type of an item, and a null is left out by the converters.
    return value.model_dump() if isinstance(value, BaseModel) else dict(value)


# Built at first use, not at import: many a run converts nothing.
@cache
def _input_items() -> TypeAdapter[list[NeMoGymResponseInputItem]]:
    return TypeAdapter(list[NeMoGymResponseInputItem])


@cache
def _output_items() -> TypeAdapter[list[NeMoGymResponseOutputItem]]:
    return TypeAdapter(list[NeMoGymResponseOutputItem])
