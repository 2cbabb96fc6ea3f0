import logging
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from responses_api_models.vllm_model.tests.asking import (
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
def test_tokens_stand_on_the_answer_whichever_way_the_engine_gives_them(style: Style) -> None:
    with VLLMStandIn(style=style) as vllm:
        gym = Gym(vllm, return_token_id_information=True)
        response = gym.ask({"input": "x"})
        chat = gym.chat({"messages": [user()]})
    expected = {
        "prompt_token_ids": tokenize(render({"messages": [user()]})),
        "generation_token_ids": HI,
        "generation_log_probs": [log_prob(token) for token in HI],
        "generation_log_probs_mode": "raw_logprobs",
    }
    assert tokens_on(response["output"][-1]) == expected
    assert tokens_on(chat["choices"][0]["message"]) == expected


def test_engine_is_asked_for_the_tokens_of_one_answer() -> None:
    with VLLMStandIn() as vllm:
        Gym(vllm, return_token_id_information=True).ask({"input": "x"})
    asked = {
        "logprobs": True,
        "top_logprobs": 0,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        "n": 1,
    }
    assert vllm.bodies()[0].items() >= asked.items()


def test_engine_is_asked_for_no_tokens_where_nobody_wants_them() -> None:
    with VLLMStandIn() as vllm:
        response = Gym(vllm).ask({"input": "x"})
    assert not {"logprobs", "return_token_ids", "n"} & set(vllm.bodies()[0])
    assert tokens_on(response["output"][-1]) == {}


@pytest.mark.parametrize("style", STYLES)
def test_tokens_stand_on_the_last_item_of_a_call(style: Style) -> None:
    with VLLMStandIn(lambda prompt: f"<think>hm</think>so{CALL}{CALL}", style=style) as vllm:
        response = Gym(vllm, return_token_id_information=True).ask({"input": "x", "tools": [WEATHER]})
    assert [kind for kind, _ in texts_of(response)] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert [set(tokens_on(item)) for item in response["output"]] == [set(), set(), set(), FIELDS]
    generated = f"<think>hm</think>so{CALL}{CALL}"
    assert response["output"][-1]["generation_token_ids"] == [*sample(generated), EOS]


def test_prompt_is_tokenised_with_all_that_the_template_was_given() -> None:
    with VLLMStandIn(style="strings") as vllm:
        gym = Gym(vllm, return_token_id_information=True, chat_template_kwargs={"enable_thinking": False})
        response = gym.ask({"input": "x", "tools": [WEATHER]})
    (chat,), (asked,) = vllm.bodies(), vllm.bodies("/tokenize")
    assert asked == {
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
        answer = Gym(vllm, return_token_id_information=True).chat(body)
    assert answer["choices"][0]["message"]["prompt_token_ids"] == tokenize(render(body))


def test_endpoint_that_tokenises_no_messages_is_a_failure() -> None:
    def intercept(path: str, body: dict[str, Any]) -> web.Response | None:
        return web.json_response({"tokens": []}) if path == "/tokenize" else None  # what llama.cpp answers

    with VLLMStandIn(style="strings", intercept=intercept) as vllm:
        answer = Gym(vllm, return_token_id_information=True).post({"input": "x"})
    assert answer.status == 502
    assert "the endpoint's /tokenize gives no tokens for messages" in text_of(answer)


def test_kind_of_log_probabilities_is_recorded() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, return_token_id_information=True, logprobs_mode="processed_logprobs")
        item = gym.ask({"input": "x"})["output"][-1]
    assert item["generation_log_probs_mode"] == "processed_logprobs"


def test_policy_server_may_say_itself_which_log_probabilities_it_gives() -> None:
    def alter(answer: dict[str, Any]) -> None:
        answer["choices"][0]["message"]["generation_log_probs_mode"] = "processed_logprobs"

    with VLLMStandIn(style="policy", alter=alter) as vllm:
        item = Gym(vllm, return_token_id_information=True).ask({"input": "x"})["output"][-1]
    assert item["generation_log_probs_mode"] == "processed_logprobs"


def test_policy_server_may_repeat_some_of_what_it_put_on_the_message() -> None:
    def alter(answer: dict[str, Any]) -> None:
        choice = answer["choices"][0]
        answer["prompt_token_ids"] = choice["message"]["prompt_token_ids"]
        choice["logprobs"] = None

    with VLLMStandIn(style="policy", alter=alter) as vllm:
        item = Gym(vllm, return_token_id_information=True).ask({"input": "x"})["output"][-1]
    assert item["generation_token_ids"] == HI


def test_answer_cut_by_length_has_its_tokens_too() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, return_token_id_information=True)
        response = gym.ask({"input": "x", "max_output_tokens": 1})
    assert response["status"] == "incomplete"
    assert response["output"][-1]["generation_token_ids"] == sample("h")


def test_log_probabilities_are_only_in_chat_answers_of_those_who_asked() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, return_token_id_information=True)
        silent = gym.chat({"messages": [user()]})
        told = gym.chat({"messages": [user()], "logprobs": True, "top_logprobs": 2})
    assert silent["choices"][0]["logprobs"] is None
    assert "token_ids" not in silent["choices"][0]
    assert "prompt_token_ids" not in silent
    content = told["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [log_prob(token) for token in HI]
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2, 2]


def test_tokens_are_counted_where_the_engine_gives_no_usage(caplog: pytest.LogCaptureFixture) -> None:
    with VLLMStandIn(alter=lambda answer: answer.pop("usage")) as vllm:
        response = Gym(vllm, return_token_id_information=True).ask({"input": "x"})
    assert response["usage"]["output_tokens"] == 3
    assert response["usage"]["input_tokens"] == len(response["output"][-1]["prompt_token_ids"])
    assert caplog.records == []


def test_several_answers_to_one_request_are_refused() -> None:
    with VLLMStandIn() as vllm:
        gym = Gym(vllm, return_token_id_information=True)
        answer = gym.post({"messages": [user()], "n": 4}, "/v1/chat/completions")
    assert (answer.status, vllm.asked) == (422, [])
    assert "n=4" in text_of(answer)


def test_log_probability_that_is_no_number_is_null() -> None:
    def alter(answer: dict[str, Any]) -> None:
        answer["choices"][0]["logprobs"]["content"][1]["logprob"] = None

    with VLLMStandIn(alter=alter) as vllm:
        item = Gym(vllm, return_token_id_information=True).ask({"input": "x"})["output"][-1]
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
            "prompt_token_ids of the message and of the answer differ (at position 0: 1 and 7)",
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
            "some tokens in logprobs are given as ids and some as text",
        ),
        ("strings", lambda a, c, m: c.pop("logprobs"), "the endpoint gives no token ids"),
        ("ids", lambda a, c, m: a["choices"].append(c), "has 2 choices, where one was asked for"),
        ("ids", lambda a, c, m: a.update(choices=None), "has 0 choices, where one was asked for"),
        ("ids", lambda a, c, m: c.update(message=None), "the endpoint's answer has no message"),
        ("silent", lambda a, c, m: None, "the endpoint gives no token ids; serve the model with vLLM"),
    ],
)
def test_tokens_that_do_not_fit_are_a_failure_that_says_which(
    style: Style, change: Change, problem: str
) -> None:
    def alter(answer: dict[str, Any]) -> None:
        choice = answer["choices"][0]
        change(answer, choice, choice["message"])

    with VLLMStandIn(style=style, alter=alter) as vllm:
        answer = Gym(vllm, return_token_id_information=True).post({"input": "x"})
    assert (answer.status, answer.headers["x-nemo-gym-failure-kind"]) == (502, "infrastructure")
    assert problem in text_of(answer)


def test_policy_server_gets_the_ids_of_history_and_never_tokenises_it_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with VLLMStandIn(style="policy") as vllm:
        gym = Gym(vllm, return_token_id_information=True)
        first, second, third = gym.say("a", "b", "c")
    for before, after in ((first, second), (second, third)):
        seen = read_and_sampled(before)
        assert after["output"][-1]["prompt_token_ids"][: len(seen)] == seen
    sent = vllm.bodies()[1]["messages"][1]
    assert sent["generation_token_ids"] == HI
    assert caplog.records == []
    assert gym.model.notices.counts["retokenized"] == 0


@pytest.mark.parametrize("style", ["ids", "strings"])
def test_engine_that_tokenises_history_again_is_noticed_once_and_counted(
    style: Style, caplog: pytest.LogCaptureFixture
) -> None:
    with VLLMStandIn(style=style) as vllm:
        gym = Gym(vllm, return_token_id_information=True)
        first, _, third = gym.say("a", "b", "c")
        gym.say("d", "e")
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    part = len(first["output"][-1]["prompt_token_ids"])
    expected = tokenize("hi")[0]
    assert f"(at position {part}: {HI[0]} and {expected})" in record.getMessage()
    assert "set token_id_replay: completions" in record.getMessage()
    assert gym.model.notices.counts["retokenized"] == 3
    assert third["output"][-1]["generation_token_ids"] == HI
