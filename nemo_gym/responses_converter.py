"""The published interface of the converters between Responses and Chat Completions.

The converters work on plain data; the methods under their older names take and return pydantic models.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from nemo_gym import formats
from nemo_gym.formats import FormatError, RequestFormatError, ResponseFormatError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChoice,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputItem,
)

__all__ = [
    "FormatError",
    "RequestFormatError",
    "ResponseFormatError",
    "ResponsesConverter",
    "VLLMConverter",
    "split_responses_input_output_items",
]


class ResponsesConverter:
    """Converts for one endpoint.

    A request that cannot be converted raises RequestFormatError; an endpoint's response that cannot be read
    raises ResponseFormatError.
    """

    def __init__(
        self, *, uses_reasoning_parser: bool = True, return_token_id_information: bool = False
    ) -> None:
        """`uses_reasoning_parser`: the endpoint returns reasoning in a separate field; otherwise it is in the
        text, between <think> and </think>. `return_token_id_information`: requests include the token fields
        of the history. Responses always keep theirs.
        """
        self.uses_reasoning_parser = uses_reasoning_parser
        self.return_token_id_information = return_token_id_information
        style: formats.ReasoningStyle = (
            formats.ReasoningField() if uses_reasoning_parser else formats.ReasoningTags()
        )
        self._chat_style = formats.ChatStyle(style, return_token_id_information)

    def chat_request(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """A Responses request as a Chat Completions request."""
        return formats.chat_request(params, self._chat_style)

    def responses_request(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        """A Chat Completions request as a Responses request."""
        return formats.responses_request(chat, self._chat_style)

    def response(self, completion: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """A chat completion as the model response to the Responses request `params`."""
        return formats.response(completion, params, self._chat_style.reasoning)

    def chat_completion(self, response: Mapping[str, Any]) -> dict[str, Any]:
        """A model response of one model call as a chat completion."""
        return formats.chat_completion(response, self._chat_style.reasoning)

    def responses_to_chat_completion_create_params(
        self, responses_create_params: NeMoGymResponseCreateParamsNonStreaming | Mapping[str, Any]
    ) -> NeMoGymChatCompletionCreateParamsNonStreaming:
        """`chat_request` with models."""
        chat = self.chat_request(_plain(responses_create_params))
        return NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(chat)

    def chat_completions_messages_to_responses_items(
        self, messages: Sequence[BaseModel | Mapping[str, Any]]
    ) -> list[NeMoGymResponseInputItem]:
        """Chat messages as items, with their token fields."""
        items = formats.items_from_messages(
            [_plain(message) for message in messages], self._chat_style.reasoning, with_tokens=True
        )
        return _input_items().validate_python(items)

    def postprocess_chat_response(
        self, choice: NeMoGymChoice | Mapping[str, Any]
    ) -> list[NeMoGymResponseOutputItem]:
        """One choice of a chat completion as output items, without the log-probabilities of the text."""
        items = formats.output_items(_plain(choice), self._chat_style.reasoning, with_log_probs=False)
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
    """Split a conversation, of models or plain data, before the first item that the model generated.

    `nemo_gym.formats.first_generated` says which item that is.
    """
    first = formats.first_generated(items)
    return list(items[:first]), list(items[first:])


def _plain(value: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    # Including unset fields: they may hold the type of an item, and the converters leave out nulls.
    return value.model_dump() if isinstance(value, BaseModel) else dict(value)


# Built at first use, not at import: most runs do not need them.
@cache
def _input_items() -> TypeAdapter[list[NeMoGymResponseInputItem]]:
    return TypeAdapter(list[NeMoGymResponseInputItem])


@cache
def _output_items() -> TypeAdapter[list[NeMoGymResponseOutputItem]]:
    return TypeAdapter(list[NeMoGymResponseOutputItem])
