import logging
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from responses_api_models.vllm_model.tests.model_under_test import (
    CALL,
    WEATHER,
    Gym,
    read_and_sampled,
    text_of,
    texts_of,
    user,
)
from tests.support.vllm_stand_in import EOS, Style, VLLMStandIn, log_prob, render, sample, tokenize

HI = [*sample("hi"), EOS]
FIELDS = {"prompt_token_ids", "generation_token_ids", "generation_log_probs", "generation_log_probs_mode"}
STYLES: list[Style] = ["ids", "strings", "policy"]


def tokens_on(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key in FIELDS}


@pytest.mark.parametrize("style", STYLES)
def test_token_fields_are_the_same_in_every_style_of_the_engine(style: Style) -> None:
    with VLLMStandIn(style=style) as vllm:
        gym = Gym(vllm, return_token_id_information=True)
        response = gym.respond({"input": "x"})
        chat = gym.chat({"messages": [user()]})
    expected = {
        "prompt_token_ids": tokenize(render({"messages": [user()]})),
        "generation_token_ids": HI,
        "generation_log_probs": [log_prob(token) for token in HI],
        "generation_log_probs_mode": "raw_logprobs",
    }
    assert tokens_on(response["output"][-1]) == expected
    assert tokens_on(chat["choices"][0]["message"]) == expected


def test_request_to_the_engine_requests_token_ids_and_one_choice() -> None:
    with VLLMStandIn() as vllm:
        Gym(vllm, return_token_id_information=True).respond({"input": "x"})
    fields = {
        "logprobs": True,
        "top_logprobs": 0,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        "n": 1,
    }
    assert vllm.bodies()[0].items() >= fields.items()


def test_request_to_the_engine_omits_token_ids_by_default() -> None:
    with VLLMStandIn() as vllm:
        response = Gym(vllm).respond({"input": "x"})
    assert not {"logprobs", "return_token_ids", "n"} & set(vllm.bodies()[0])
    assert tokens_on(response["output"][-1]) == {}


@pytest.mark.parametrize("style", STYLES)
def test_token_fields_are_on_the_last_item_of_a_call(style: Style) -> None:
    with VLLMStandIn(lambda prompt: f"<think>hm</think>so{CALL}{CALL}", style=style) as vllm:
        response = Gym(vllm, return_token_id_information=True).respond({"input": "x", "tools": [WEATHER]})
    assert [kind for kind, _ in texts_of(response)] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert [set(tokens_on(item)) for item in response["output"]] == [set(), set(), set(), FIELDS]
    generated = f"<think>hm</think>so{CALL}{CALL}"
    assert response["output"][-1]["generation_token_ids"] == [*sample(generated), EOS]


def test_prompt_is_tokenised_with_all_arguments_of_the_template() -> None:
    with VLLMStandIn(style="strings") as vllm:
        gym = Gym(vllm, return_token_id_information=True, chat_template_kwargs={"enable_thinking": False})
        response = gym.respond({"input": "x", "tools": [WEATHER]})
    (chat,), (tokenized,) = vllm.bodies(), vllm.bodies("/tokenize")
    assert tokenized == {
        "model": "mine",
        "messages": [user()],
        "tools": chat["tools"],
        "add_generation_prompt": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert response["output"][-1]["prompt_token_ids"] == tokenize(render(chat))
    assert response["usage"]["input_tokens"] == len(response["output"][-1]["prompt_token_ids"])


def test_prompt_without_a_generation_prompt_is_tokenised_without_one() -> None:
    body = {"messages": [user()], "add_generation_prompt": False}
    with VLLMStandIn(style="strings") as vllm:
        response = Gym(vllm, return_token_id_information=True).chat(body)
    assert response["choices"][0]["message"]["prompt_token_ids"] == tokenize(render(body))


def test_endpoint_that_cannot_tokenise_messages_is_a_failure() -> None:
    def intercept(path: str, body: dict[str, Any]) -> web.Response | None:
        return web.json_response({"tokens": []}) if path == "/tokenize" else None  # as llama.cpp does

    with VLLMStandIn(style="strings", intercept=intercept) as vllm:
        response = Gym(vllm, return_token_id_information=True).post({"input": "x"})
    assert response.status == 502
    assert "the endpoint's /tokenize returns no tokens for messages" in text_of(response)


def test_mode_of_log_probabilities_is_recorded() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, return_token_id_information=True, logprobs_mode="processed_logprobs")
        item = gym.respond({"input": "x"})["output"][-1]
    assert item["generation_log_probs_mode"] == "processed_logprobs"


def test_policy_server_may_set_the_mode_of_its_log_probabilities() -> None:
    def alter(completion: dict[str, Any]) -> None:
        completion["choices"][0]["message"]["generation_log_probs_mode"] = "processed_logprobs"

    with VLLMStandIn(style="policy", alter=alter) as vllm:
        item = Gym(vllm, return_token_id_information=True).respond({"input": "x"})["output"][-1]
    assert item["generation_log_probs_mode"] == "processed_logprobs"


def test_policy_server_may_repeat_token_fields_outside_the_message() -> None:
    def alter(completion: dict[str, Any]) -> None:
        choice = completion["choices"][0]
        completion["prompt_token_ids"] = choice["message"]["prompt_token_ids"]
        choice["logprobs"] = None

    with VLLMStandIn(style="policy", alter=alter) as vllm:
        item = Gym(vllm, return_token_id_information=True).respond({"input": "x"})["output"][-1]
    assert item["generation_token_ids"] == HI


def test_response_at_its_token_limit_has_token_fields() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, return_token_id_information=True)
        response = gym.respond({"input": "x", "max_output_tokens": 1})
    assert response["status"] == "incomplete"
    assert response["output"][-1]["generation_token_ids"] == sample("h")


def test_chat_completion_has_log_probabilities_only_if_requested() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, return_token_id_information=True)
        without = gym.chat({"messages": [user()]})
        with_log_probs = gym.chat({"messages": [user()], "logprobs": True, "top_logprobs": 2})
    assert without["choices"][0]["logprobs"] is None
    assert "token_ids" not in without["choices"][0]
    assert "prompt_token_ids" not in without
    content = with_log_probs["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [log_prob(token) for token in HI]
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2, 2]


def test_tokens_are_counted_if_the_engine_returns_no_usage(caplog: pytest.LogCaptureFixture) -> None:
    with VLLMStandIn(alter=lambda completion: completion.pop("usage")) as vllm:
        response = Gym(vllm, return_token_id_information=True).respond({"input": "x"})
    assert response["usage"]["output_tokens"] == 3
    assert response["usage"]["input_tokens"] == len(response["output"][-1]["prompt_token_ids"])
    assert caplog.records == []


def test_several_choices_per_request_are_rejected() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, return_token_id_information=True)
        response = gym.post({"messages": [user()], "n": 4}, "/v1/chat/completions")
    assert (response.status, vllm.requests) == (422, [])
    assert "n=4" in text_of(response)


def test_nan_log_probability_is_null() -> None:
    def alter(completion: dict[str, Any]) -> None:
        completion["choices"][0]["logprobs"]["content"][1]["logprob"] = None

    with VLLMStandIn(alter=alter) as vllm:
        item = Gym(vllm, return_token_id_information=True).respond({"input": "x"})["output"][-1]
    assert item["generation_log_probs"] == [log_prob(HI[0]), None, log_prob(HI[2])]


Change = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("style", "change", "problem"),
    [
        ("policy", lambda a, c, m: m.pop("prompt_token_ids"), "no prompt_token_ids"),
        (
            "policy",
            lambda a, c, m: [m.pop("generation_token_ids"), m.pop("prompt_token_ids")],
            "no prompt_token_ids and no generation_token_ids",
        ),
        ("policy", lambda a, c, m: m["generation_log_probs"].pop(), "3 generated ids, but 2 log-prob"),
        (
            "policy",
            lambda a, c, m: m["generation_token_ids"].reverse(),
            "generation_token_ids and the ids in logprobs differ (at position 0: 2 and 114)",
        ),
        (
            "policy",
            lambda a, c, m: [a.update(prompt_token_ids=[7]), c.update(token_ids=HI)],
            "prompt_token_ids of the message and of the completion differ (at position 0: 1 and 7)",
        ),
        (
            "policy",
            lambda a, c, m: [
                c.update(token_ids=HI[:2]),
                c["logprobs"]["content"].pop(),
                a.update(prompt_token_ids=m["prompt_token_ids"]),
            ],
            "generation_token_ids and token_ids differ (their lengths: 3 and 2)",
        ),
        ("ids", lambda a, c, m: a.pop("prompt_token_ids"), "has token_ids, but no prompt_token_ids"),
        ("ids", lambda a, c, m: c.pop("token_ids"), "has prompt_token_ids, but no token_ids"),
        ("ids", lambda a, c, m: c.pop("logprobs"), "has token_ids, but no logprobs"),
        (
            "ids",
            lambda a, c, m: c["logprobs"]["content"].pop(),
            "token_ids and the ids in logprobs differ (their lengths: 3 and 2)",
        ),
        (
            "ids",
            lambda a, c, m: c["logprobs"].update(content=[{"token": "h", "logprob": -1.0}]),
            "3 generated ids, but 1 log-probabilities",
        ),
        (
            "strings",
            lambda a, c, m: c["logprobs"]["content"][1].update(token="i"),
            "some tokens in logprobs are ids and some are text",
        ),
        ("strings", lambda a, c, m: c.pop("logprobs"), "the endpoint returns no token ids"),
        ("ids", lambda a, c, m: a["choices"].append(c), "has 2 choices instead of one"),
        ("ids", lambda a, c, m: a.update(choices=None), "has 0 choices instead of one"),
        ("ids", lambda a, c, m: c.update(message=None), "the endpoint's chat completion has no message"),
        ("silent", lambda a, c, m: None, "the endpoint returns no token ids; serve the model with vLLM"),
    ],
)
def test_contradictory_tokens_are_a_failure_that_names_them(
    style: Style, change: Change, problem: str
) -> None:
    def alter(completion: dict[str, Any]) -> None:
        choice = completion["choices"][0]
        change(completion, choice, choice["message"])

    with VLLMStandIn(style=style, alter=alter) as vllm:
        response = Gym(vllm, return_token_id_information=True).post({"input": "x"})
    assert (response.status, response.headers["x-nemo-gym-failure-kind"]) == (502, "infrastructure")
    assert problem in text_of(response)


def test_policy_server_gets_the_ids_of_the_history(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with VLLMStandIn(style="policy") as vllm:
        gym = Gym(vllm, return_token_id_information=True)
        first, second, third = gym.converse("a", "b", "c")
    for before, after in ((first, second), (second, third)):
        seen = read_and_sampled(before)
        assert after["output"][-1]["prompt_token_ids"][: len(seen)] == seen
    sent = vllm.bodies()[1]["messages"][1]
    assert sent["generation_token_ids"] == HI
    assert caplog.records == []
    assert gym.model.notices.counts["retokenized"] == 0


@pytest.mark.parametrize("style", ["ids", "strings"])
def test_engine_that_tokenises_history_again_is_logged_once_and_counted(
    style: Style, caplog: pytest.LogCaptureFixture
) -> None:
    with VLLMStandIn(style=style) as vllm:
        gym = Gym(vllm, return_token_id_information=True)
        first, _, third = gym.converse("a", "b", "c")
        gym.converse("d", "e")
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    part = len(first["output"][-1]["prompt_token_ids"])
    expected = tokenize("hi")[0]
    assert f"(at position {part}: {HI[0]} and {expected})" in record.getMessage()
    assert "set token_id_replay: completions" in record.getMessage()
    assert gym.model.notices.counts["retokenized"] == 3
    assert third["output"][-1]["generation_token_ids"] == HI
