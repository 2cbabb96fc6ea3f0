"""A conversion followed by its inverse changes nothing, and no argument is ever changed."""

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses import Response
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from nemo_gym.formats import (
    ChatStyle,
    ReasoningTags,
    RequestFormatError,
    ResponseFormatError,
    chat_completion,
    chat_request,
    response,
    responses_request,
)
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from tests.gym.formats.conversations import (
    CHAT_STYLES,
    chat_requests,
    completions,
    responses,
    responses_requests,
)
from tests.gym.openai_utils.sdk_strategies import values_of

some = settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
chat_styles = st.sampled_from(CHAT_STYLES)
TAGS = ChatStyle(ReasoningTags(), sends_tokens=True)


@given(responses_requests(), chat_styles)
@some
def test_a_responses_request_survives_the_round_trip(params: dict[str, Any], chat_style: ChatStyle) -> None:
    before = copy.deepcopy(params)
    chat = chat_request(params, chat_style)
    NeMoGymResponseCreateParamsNonStreaming.model_validate(params)
    NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(chat)
    assert responses_request(chat, chat_style) == before
    assert params == before


@given(chat_styles.flatmap(lambda chat_style: st.tuples(st.just(chat_style), chat_requests(chat_style))))
@some
def test_a_chat_request_survives_the_round_trip(case: tuple[ChatStyle, dict[str, Any]]) -> None:
    chat_style, chat = case
    before = copy.deepcopy(chat)
    params = responses_request(chat, chat_style)
    NeMoGymResponseCreateParamsNonStreaming.model_validate(params)
    assert chat_request(params, chat_style) == before
    assert chat == before


@given(chat_styles.flatmap(lambda chat_style: st.tuples(st.just(chat_style), completions(chat_style))))
@some
def test_a_chat_completion_survives_the_round_trip(case: tuple[ChatStyle, dict[str, Any]]) -> None:
    chat_style, completion = case
    before = copy.deepcopy(completion)
    converted = response(completion, {}, chat_style.reasoning)
    NeMoGymResponse.model_validate(converted)
    assert chat_completion(converted, chat_style.reasoning) == before
    assert completion == before


@given(
    responses_requests().flatmap(lambda params: st.tuples(st.just(params), responses(params))),
    chat_styles,
)
@some
def test_a_response_survives_the_round_trip_except_for_item_ids(
    case: tuple[dict[str, Any], dict[str, Any]], chat_style: ChatStyle
) -> None:
    params, converted = case
    before = copy.deepcopy(converted)
    completion = chat_completion(converted, chat_style.reasoning)
    NeMoGymChatCompletion.model_validate(completion)
    round_trip = response(completion, params, chat_style.reasoning)
    for item in round_trip["output"]:
        del item["id"]
    assert round_trip == before
    assert converted == before


@given(values_of(ResponseCreateParamsNonStreaming))
@some
def test_any_sdk_request_becomes_a_valid_chat_request_or_is_rejected(params: dict[str, Any]) -> None:
    before = copy.deepcopy(params)
    try:
        chat = chat_request(params, TAGS)
    except RequestFormatError:
        return
    finally:
        assert params == before
    # An output may lack the id of its call; the endpoint decides whether it accepts that.
    assume(all("tool_call_id" in message for message in chat["messages"] if message["role"] == "tool"))
    NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(chat)


@given(values_of(CompletionCreateParamsNonStreaming))
@some
def test_any_sdk_chat_request_becomes_a_responses_request_or_is_rejected(chat: dict[str, Any]) -> None:
    before = copy.deepcopy(chat)
    try:
        params = responses_request(chat, TAGS)
    except RequestFormatError:
        return
    finally:
        assert chat == before
    assert isinstance(params["input"], list)


@given(values_of(ChatCompletion))
@some
def test_any_sdk_completion_becomes_a_valid_response_or_is_rejected(
    completion: dict[str, Any],
) -> None:
    before = copy.deepcopy(completion)
    try:
        converted = response(completion, {}, TAGS.reasoning)
    except ResponseFormatError:
        return
    finally:
        assert completion == before
    NeMoGymResponse.model_validate(converted)
    differing = ("usage", "service_tier", "moderation")  # their types differ within the SDK itself
    Response.model_validate({key: value for key, value in converted.items() if key not in differing})


@given(values_of(Response))
@some
def test_any_sdk_response_becomes_a_valid_completion_or_is_rejected(converted: dict[str, Any]) -> None:
    before = copy.deepcopy(converted)
    try:
        completion = chat_completion(converted, TAGS.reasoning)
    except ResponseFormatError:
        return
    finally:
        assert converted == before
    NeMoGymChatCompletion.model_validate(completion)


@pytest.mark.parametrize("junk", [None, 5, "x", [], {}, [5], [None], {"a": 1}, True])
@pytest.mark.parametrize(
    "field", ["input", "tools", "tool_choice", "text", "reasoning", "include", "metadata"]
)
def test_junk_in_a_request_is_rejected_or_passed_on_but_never_crashes(field: str, junk: Any) -> None:
    try:
        chat_request({"input": "x", field: junk}, TAGS)
    except RequestFormatError as error:
        assert field in str(error)
