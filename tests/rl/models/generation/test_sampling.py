import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nemo_rl.models.generation.sampling import Sampling, draw, likeliest

pytestmark = pytest.mark.torch

LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=40)  # ties and single tokens included
TEMPERATURES = st.floats(0.1, 4)
UNIFORMS = st.floats(0, 1, exclude_max=True)


def draw_one(logits: list[float], sampling: Sampling, uniform: float) -> tuple[int, float]:
    drawn = draw(torch.tensor([logits]), sampling, torch.tensor([uniform], dtype=torch.float64))
    return drawn.tokens_N[0], drawn.logprobs_N[0]


def kept_ids(logits: list[float], sampling: Sampling) -> set[int]:
    values, ids = likeliest(torch.tensor([logits]) / sampling.temperature, sampling)
    return {int(token) for value, token in zip(values[0], ids[0], strict=True) if value > -math.inf}


def probabilities(logits: list[float], temperature: float = 1.0) -> list[float]:
    return (torch.tensor(logits, dtype=torch.float64) / temperature).softmax(-1).tolist()


@given(LOGITS, st.integers(1, 50))
def test_top_k_keeps_the_k_likeliest(logits: list[float], k: int) -> None:
    kept = kept_ids(logits, Sampling(top_k=k))
    assert len(kept) == min(k, len(logits))
    dropped = [logit for token, logit in enumerate(logits) if token not in kept]
    assert max(dropped, default=-math.inf) <= min(logits[token] for token in kept)


@given(LOGITS, st.floats(0.01, 0.999), TEMPERATURES)
def test_top_p_keeps_the_smallest_set_of_likeliest_tokens_with_that_mass(
    logits: list[float], top_p: float, temperature: float
) -> None:
    kept = kept_ids(logits, Sampling(temperature=temperature, top_p=top_p))
    probs = probabilities(logits, temperature)
    mass = sum(probs[token] for token in kept)
    assert mass >= top_p - 1e-5
    assert mass - min(probs[token] for token in kept) <= top_p + 1e-5
    dropped = [prob for token, prob in enumerate(probs) if token not in kept]
    assert max(dropped, default=0.0) <= min(probs[token] for token in kept) + 1e-6


def test_top_p_considers_more_tokens_if_the_first_candidates_have_too_little_mass() -> None:
    logits = torch.linspace(1, 0, 5000)
    values, ids = likeliest(torch.stack([logits, logits * 100]), Sampling(top_p=0.9))
    kept = (values > -math.inf).sum(-1).tolist()
    mass = logits.double().softmax(-1).cumsum(-1)
    assert kept[0] == int((mass < 0.9).sum()) + 1
    assert kept[1] < 128
    assert ids[0, :5].tolist() == [0, 1, 2, 3, 4]


@given(LOGITS, st.floats(0.05, 1), st.integers(0, 12), TEMPERATURES, UNIFORMS)
def test_logprob_is_that_of_the_distribution_drawn_from(
    logits: list[float], top_p: float, top_k: int, temperature: float, uniform: float
) -> None:
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    token, logprob = draw_one(logits, sampling, uniform)
    filtered = sampling.top_k_limit is not None or top_p < 1
    kept = kept_ids(logits, sampling) if filtered else set(range(len(logits)))
    assert token in kept
    probs = probabilities(logits, temperature)
    assert logprob == pytest.approx(math.log(probs[token] / sum(probs[other] for other in kept)), abs=1e-4)


@given(LOGITS, st.integers(1, 12), TEMPERATURES, UNIFORMS)
def test_raw_logprob_is_that_of_the_unchanged_distribution(
    logits: list[float], top_k: int, temperature: float, uniform: float
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, logprobs_mode="raw")
    token, logprob = draw_one(logits, sampling, uniform)
    assert token in kept_ids(logits, sampling)
    assert logprob == pytest.approx(math.log(probabilities(logits)[token]), abs=1e-4)


@given(LOGITS, UNIFORMS)
def test_temperature_0_takes_the_likeliest_token_with_its_logprob_at_temperature_1(
    logits: list[float], uniform: float
) -> None:
    token, logprob = draw_one(logits, Sampling(temperature=0, top_k=3, top_p=0.5), uniform)
    assert logits[token] == max(logits)
    assert logprob == pytest.approx(math.log(probabilities(logits)[token]), abs=1e-4)


@given(LOGITS, TEMPERATURES)
def test_each_token_is_drawn_as_often_as_its_probability_says(
    logits: list[float], temperature: float
) -> None:
    steps = 400
    uniforms = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    drawn = draw(torch.tensor([logits] * steps), Sampling(temperature=temperature), uniforms)
    probs = probabilities(logits, temperature)
    for token, prob in enumerate(probs):
        assert drawn.tokens_N.count(token) == pytest.approx(prob * steps, abs=2)


@given(st.lists(LOGITS.filter(lambda row: len(row) >= 4), min_size=2, max_size=5), UNIFORMS)
def test_other_rows_do_not_change_a_draw(rows: list[list[float]], uniform: float) -> None:
    width = min(map(len, rows))
    batch = torch.tensor([row[:width] for row in rows])
    uniforms = torch.full((len(rows),), uniform, dtype=torch.float64)
    for sampling in (Sampling(), Sampling(top_k=2), Sampling(top_p=0.7), Sampling(0)):
        together = draw(batch, sampling, uniforms)
        alone = [draw(batch[row : row + 1], sampling, uniforms[:1]) for row in range(len(rows))]
        assert together.tokens_N == [drawn.tokens_N[0] for drawn in alone]


def test_a_uniform_just_below_1_draws_a_token_with_a_probability_above_0() -> None:
    logits = [0.0] * 7 + [-math.inf] * 3
    for total in (3, 5, 7):
        token, logprob = draw_one(logits[7 - total :], Sampling(), math.nextafter(1, 0))
        assert token == total - 1
        assert logprob == pytest.approx(-math.log(total))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0), Sampling(top_k=2), Sampling(top_p=0.5)])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_logits_that_are_nan_or_infinite_are_rejected(sampling: Sampling, broken: float) -> None:
    with pytest.raises(RuntimeError, match="NaN or infinite"):
        draw_one([0.0, broken, broken], sampling, 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -0.1}, "temperature must be 0 or more"),
        ({"temperature": math.nan}, "temperature must be 0 or more"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1"),
        ({"top_k": -2}, "top_k must be 1 or more"),
        ({"logprobs_mode": "none"}, "logprobs_mode must be 'processed' or 'raw'"),
    ],
)
def test_values_out_of_range_are_rejected(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("top_k", [None, 0, -1])
def test_top_k_can_be_disabled(top_k: int | None) -> None:
    assert Sampling(top_k=top_k).top_k_limit is None
