"""From logits to a token and its log-prob.

A draw uses one uniform number of the row's own, so neighbours in a batch do not change it. The log-prob is
that of the distribution drawn from, after temperature and filters, unless `logprobs_mode` is "raw".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

LogprobsMode = Literal["processed", "raw"]

_CANDIDATES = 128
"""Tokens looked at first for top-p: sorting a whole vocabulary takes longer than a small model's pass."""


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen."""

    temperature: float = 1.0
    """0: the likeliest token; its log-prob is then that of the unchanged distribution (temperature 1)."""
    top_p: float = 1.0
    """The smallest set of likeliest tokens with at least this mass; among those that `top_k` leaves."""
    top_k: int | None = None
    """So many likeliest tokens; None, 0 and -1: all."""
    logprobs_mode: LogprobsMode = "processed"
    """raw: of the model's own distribution, before temperature and filters."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be 0 or more, not {self.temperature}; 0: the likeliest token")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}; 1 keeps all tokens")
        if self.top_k is not None and (isinstance(self.top_k, bool) or self.top_k < -1):
            raise ValueError(f"top_k must be 1 or more, not {self.top_k}; None, 0 and -1 keep all tokens")
        if self.logprobs_mode not in ("processed", "raw"):
            raise ValueError(f"logprobs_mode is processed or raw, not {self.logprobs_mode!r}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any], logprobs_mode: LogprobsMode = "processed") -> Sampling:
        """Of a `GenerationConfig`; what it does not say is left unfiltered, at temperature 1."""
        return cls(
            temperature=float(config.get("temperature", 1.0)),
            top_p=float(config.get("top_p", 1.0)),
            top_k=config.get("top_k"),
            logprobs_mode=logprobs_mode,
        )

    def as_greedy(self) -> Sampling:
        return replace(self, temperature=0.0)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def kept(self) -> int | None:
        """`top_k` where it filters."""
        return self.top_k if self.top_k is not None and self.top_k > 0 else None


@dataclass(frozen=True)
class Draw:
    """A token for each row."""

    tokens_N: list[int]
    logprobs_N: list[float]


def draw(logits_N_V: torch.Tensor, sampling: Sampling, uniforms_N: torch.Tensor) -> Draw:
    """One token a row; `uniforms_N` are float64 in [0, 1), one for each row."""
    logits_N_V = logits_N_V.float()
    if sampling.is_greedy:
        tokens_N = logits_N_V.argmax(-1)
        return _drawn(tokens_N, _raw_logprobs(logits_N_V, tokens_N))
    scaled_N_V = logits_N_V if sampling.temperature == 1 else logits_N_V / sampling.temperature
    if sampling.kept is None and sampling.top_p == 1:
        tokens_N, logprobs_N = _draw_by_cdf(scaled_N_V, uniforms_N)
    else:
        values_N_C, ids_N_C = likeliest(scaled_N_V, sampling)
        places_N, logprobs_N = _draw_by_cdf(values_N_C, uniforms_N)
        tokens_N = ids_N_C.gather(-1, places_N[:, None])[:, 0]
    if sampling.logprobs_mode == "raw":
        logprobs_N = _raw_logprobs(logits_N_V, tokens_N)
    return _drawn(tokens_N, logprobs_N)


def likeliest(scaled_N_V: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """What the filters leave: logits, the largest first and -inf where a row keeps fewer, and token ids."""
    vocabulary = scaled_N_V.shape[-1]
    if sampling.kept is not None:
        values_N_C, ids_N_C = scaled_N_V.topk(min(sampling.kept, vocabulary))
        return _within_mass(values_N_C, values_N_C.logsumexp(-1), sampling.top_p), ids_N_C
    whole_N = scaled_N_V.logsumexp(-1)
    count = min(_CANDIDATES, vocabulary)
    while True:
        values_N_C, ids_N_C = scaled_N_V.topk(count)
        mass_N = (values_N_C.logsumexp(-1) - whole_N).exp()
        if count == vocabulary or bool((mass_N >= sampling.top_p).all()):
            return _within_mass(values_N_C, whole_N, sampling.top_p), ids_N_C
        count = min(count * 8, vocabulary)


def _within_mass(values_N_C: torch.Tensor, whole_N: torch.Tensor, top_p: float) -> torch.Tensor:
    """Tokens from the one at which the mass is reached on are left out; the first stays always."""
    if top_p == 1:
        return values_N_C
    probs_N_C = (values_N_C - whole_N[:, None]).double().exp()
    before_N_C = probs_N_C.cumsum(-1) - probs_N_C
    left_out_N_C = before_N_C >= top_p
    left_out_N_C[:, 0] = False
    return values_N_C.masked_fill(left_out_N_C, -math.inf)


def _draw_by_cdf(values_N_C: torch.Tensor, uniforms_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Places and their log-probs under softmax(values).

    Sums are float64: in float32 the tail of a large vocabulary would be lost against a sum near 1.
    """
    top_N_1 = values_N_C.max(-1, keepdim=True).values
    cdf_N_C = (values_N_C - top_N_1).exp_().cumsum(-1, dtype=torch.float64)
    total_N_1 = cdf_N_C[:, -1:]
    # Below the total even where the product is rounded up, so that the place found has a probability. The
    # clamp is for logits that are NaN, which are refused later.
    targets_N_1 = (uniforms_N.to(cdf_N_C.device)[:, None] * total_N_1).minimum(
        total_N_1.nextafter(torch.zeros_like(total_N_1))
    )
    places_N_1 = torch.searchsorted(cdf_N_C, targets_N_1, right=True).clamp_(max=cdf_N_C.shape[-1] - 1)
    logprobs_N_1 = (values_N_C.gather(-1, places_N_1) - top_N_1).double() - total_N_1.log()
    return places_N_1[:, 0], logprobs_N_1[:, 0]


def _raw_logprobs(logits_N_V: torch.Tensor, tokens_N: torch.Tensor) -> torch.Tensor:
    return logits_N_V.gather(-1, tokens_N[:, None])[:, 0] - logits_N_V.logsumexp(-1)


def _drawn(tokens_N: torch.Tensor, logprobs_N: torch.Tensor) -> Draw:
    drawn = Draw(tokens_N=tokens_N.tolist(), logprobs_N=logprobs_N.tolist())
    if any(map(math.isnan, drawn.logprobs_N)):
        raise RuntimeError("the model's logits are no distribution (NaN); its weights are probably broken")
    return drawn
