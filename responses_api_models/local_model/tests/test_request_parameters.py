from typing import Any

import pytest

from responses_api_models.local_model.request_parameters import UNFILTERED, BadParameterError, sampling_of


def test_default_sampling_is_the_distribution_of_the_model() -> None:
    sampling = sampling_of({"messages": []}, 100)
    assert sampling.parameters == UNFILTERED
    assert sampling.top_log_probs is None


def test_parameters_get_the_names_of_the_engine() -> None:
    request = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": -1,
        "max_completion_tokens": 7,
        "seed": 3,
        "stop": "END",
        "logit_bias": {"12": -100},
        "logprobs": True,
        "top_logprobs": 2,
        "chat_template_kwargs": {"a": 1},
    }
    sampling = sampling_of(request, 100)
    assert sampling.parameters == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "presence_penalty": -1,
        "n_predict": 7,
        "seed": 3,
        "stop": ["END"],
        "logit_bias": [[12, -100]],
    }
    assert (sampling.top_log_probs, sampling.template_kwargs) == (2, {"a": 1})


def test_null_counts_as_not_set() -> None:
    assert sampling_of({"temperature": None, "stop": None, "n": None}, 100).parameters == UNFILTERED


@pytest.mark.parametrize("seed", [0, -1, 2**32 - 1, 2**70])
def test_every_seed_is_in_the_range_of_the_engine(seed: int) -> None:
    assert 0 <= sampling_of({"seed": seed}, 100).parameters["seed"] < 2**32 - 1


@pytest.mark.parametrize("most", [2**31, 2**32 + 2, 10**30])
def test_token_limit_beyond_the_range_of_the_engine_does_not_overflow(most: int) -> None:
    assert sampling_of({"max_tokens": most}, 100).parameters["n_predict"] == 2**31 - 1


@pytest.mark.parametrize("field", ["model", "metadata", "user", "store", "stream", "service_tier"])
def test_fields_without_effect_are_accepted(field: str) -> None:
    assert sampling_of({field: "x"}, 100).parameters == UNFILTERED


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"temperature": -0.1}, "temperature: must be 0 or more, not -0.1"),
        ({"temperature": "warm"}, 'temperature: must be a number, not "warm"'),
        ({"temperature": True}, "temperature: must be a number, not true"),
        ({"temperature": float("nan")}, "temperature: must be a number, not NaN"),
        ({"top_p": 5}, "top_p: must be more than 0 and at most 1, not 5"),
        ({"top_p": 0}, "top_p: must be more than 0"),
        ({"top_k": 1.5}, "top_k: must be a whole number"),
        ({"min_p": 2}, "min_p: must be between 0 and 1, not 2"),
        ({"presence_penalty": 3}, "presence_penalty: must be between -2 and 2"),
        ({"repetition_penalty": 0}, "repetition_penalty: must be more than 0"),
        ({"max_tokens": 0}, "max_tokens: must be 1 or more, not 0"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens: must be a whole number, not 1.5"),
        ({"seed": "x"}, "seed: must be a whole number"),
        ({"stop": [""]}, "stop: must be a string or a list of strings"),
        ({"stop": [1]}, "stop: must be a string or a list of strings"),
        ({"n": 2}, "n: must be 1"),
        ({"logit_bias": {"word": 1}}, "logit_bias: must be an object whose keys are token ids"),
        ({"logit_bias": {"100": 1}}, "token ids below 100"),
        ({"logit_bias": {"1": 200}}, "logit_bias.1: must be between -100 and 100"),
        ({"top_logprobs": 2}, "top_logprobs: also set logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: must be between 0 and 20"),
        ({"logprobs": 5}, "logprobs: must be true or false"),
        (
            {"temprature": 1},
            "temprature: local_model does not support this parameter; did you mean temperature?",
        ),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs: must be an object"),
    ],
)
def test_invalid_parameter_is_named(request_: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadParameterError) as raised:
        sampling_of(request_, 100)
    assert problem in str(raised.value)
