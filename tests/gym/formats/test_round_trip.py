"""Conversion there and back changes nothing, and no input is ever changed."""

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
    AnswerFormatError,
    Dialect,
    ReasoningTags,
    RequestFormatError,
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
    DIALECTS,
    chat_requests,
    completions,
    responses,
    responses_requests,
)
from tests.gym.openai_utils.sdk_strategies import values_of

some = settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
dialects = st.sampled_from(DIALECTS)
TAGS = Dialect(ReasoningTags(), sends_tokens=True)


@given(responses_requests(), dialects)
@some
def test_a_responses_request_comes_back_the_same(params: dict[str, Any], dialect: Dialect) -> None:
    before = copy.deepcopy(params)
    chat = chat_request(params, dialect)
    NeMoGymResponseCreateParamsNonStreaming.model_validate(params)
    NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(chat)
    assert responses_request(chat, dialect) == before
    assert params == before


@given(dialects.flatmap(lambda dialect: st.tuples(st.just(dialect), chat_requests(dialect))))
@some
def test_a_chat_request_comes_back_the_same(case: tuple[Dialect, dict[str, Any]]) -> None:
    dialect, chat = case
    before = copy.deepcopy(chat)
    params = responses_request(chat, dialect)
    NeMoGymResponseCreateParamsNonStreaming.model_validate(params)
    assert chat_request(params, dialect) == before
    assert chat == before


@given(dialects.flatmap(lambda dialect: st.tuples(st.just(dialect), completions(dialect))))
@some
def test_a_chat_answer_comes_back_the_same(case: tuple[Dialect, dict[str, Any]]) -> None:
    dialect, completion = case
    before = copy.deepcopy(completion)
    answer = response(completion, {}, dialect.reasoning)
    NeMoGymResponse.model_validate(answer)
    assert chat_completion(answer, dialect.reasoning) == before
    assert completion == before


@given(
    responses_requests().flatmap(lambda params: st.tuples(st.just(params), responses(params))),
    dialects,
)
@some
def test_a_response_comes_back_the_same_but_for_the_ids_of_its_items(
    case: tuple[dict[str, Any], dict[str, Any]], dialect: Dialect
) -> None:
    params, answer = case
    before = copy.deepcopy(answer)
    completion = chat_completion(answer, dialect.reasoning)
    NeMoGymChatCompletion.model_validate(completion)
    again = response(completion, params, dialect.reasoning)
    for item in again["output"]:
        del item["id"]
    assert again == before
    assert answer == before


@given(values_of(ResponseCreateParamsNonStreaming))
@some
def test_any_request_of_the_sdk_is_a_valid_chat_request_or_refused(params: dict[str, Any]) -> None:
    before = copy.deepcopy(params)
    try:
        chat = chat_request(params, TAGS)
    except RequestFormatError:
        return
    finally:
        assert params == before
    # An output may leave open which call it answers; whether the endpoint takes that is the endpoint's say.
    assume(all("tool_call_id" in message for message in chat["messages"] if message["role"] == "tool"))
    NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(chat)


@given(values_of(CompletionCreateParamsNonStreaming))
@some
def test_any_chat_request_of_the_sdk_is_a_valid_request_or_refused(chat: dict[str, Any]) -> None:
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
def test_any_chat_answer_of_the_sdk_is_a_response_to_the_sdk_or_unreadable(
    completion: dict[str, Any],
) -> None:
    before = copy.deepcopy(completion)
    try:
        answer = response(completion, {}, TAGS.reasoning)
    except AnswerFormatError:
        return
    finally:
        assert completion == before
    NeMoGymResponse.model_validate(answer)
    differing = ("usage", "service_tier", "moderation")  # what the SDK itself has in two forms
    Response.model_validate({key: value for key, value in answer.items() if key not in differing})


@given(values_of(Response))
@some
def test_any_response_of_the_sdk_is_a_chat_answer_to_the_sdk_or_no_answer(answer: dict[str, Any]) -> None:
    before = copy.deepcopy(answer)
    try:
        completion = chat_completion(answer, TAGS.reasoning)
    except AnswerFormatError:
        return
    finally:
        assert answer == before
    NeMoGymChatCompletion.model_validate(completion)


@pytest.mark.parametrize("junk", [None, 5, "x", [], {}, [5], [None], {"a": 1}, True])
@pytest.mark.parametrize(
    "field", ["input", "tools", "tool_choice", "text", "reasoning", "include", "metadata"]
)
def test_junk_in_a_request_is_refused_or_handed_on_but_never_a_crash(field: str, junk: Any) -> None:
    try:
        chat_request({"input": "x", field: junk}, TAGS)
    except RequestFormatError as error:
        assert field in str(error)
