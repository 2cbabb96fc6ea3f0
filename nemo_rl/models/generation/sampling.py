"""From logits to a token and its log-prob.

Each row is drawn with its own uniform random number, so other rows of the batch do not affect it. The
log-prob is that of the distribution drawn from, after temperature and filters, unless `logprobs_mode` is
"raw".
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
"""Tokens considered first for top-p: sorting a whole vocabulary takes longer than a pass of a small model."""


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen."""

    temperature: float = 1.0
    """0: the likeliest token, with its log-prob in the unscaled distribution (temperature 1)."""
    top_p: float = 1.0
    """Draw from the smallest set of likeliest tokens with at least this mass; applied after `top_k`."""
    top_k: int | None = None
    """Draw from this many likeliest tokens; None, 0 and -1: all."""
    logprobs_mode: LogprobsMode = "processed"
    """`raw`: log-probs of the model's own distribution, before temperature and filters."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(
                f"temperature must be 0 or more, not {self.temperature}; 0 picks the likeliest token"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}; 1 keeps all tokens")
        if self.top_k is not None and (isinstance(self.top_k, bool) or self.top_k < -1):
            raise ValueError(f"top_k must be 1 or more, not {self.top_k}; None, 0 and -1 keep all tokens")
        if self.logprobs_mode not in ("processed", "raw"):
            raise ValueError(f"logprobs_mode must be 'processed' or 'raw', not {self.logprobs_mode!r}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any], logprobs_mode: LogprobsMode = "processed") -> Sampling:
        """The sampling of a `GenerationConfig`. Missing keys mean temperature 1 and no filter."""
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
    def top_k_limit(self) -> int | None:
        """`top_k`, or None if it keeps all tokens."""
        return self.top_k if self.top_k is not None and self.top_k > 0 else None


@dataclass(frozen=True)
class Draw:
    """One token per row and its log-prob."""

    tokens_N: list[int]
    logprobs_N: list[float]


def draw(logits_N_V: torch.Tensor, sampling: Sampling, uniforms_N: torch.Tensor) -> Draw:
    """Draw one token per row; `uniforms_N` are float64 in [0, 1), one per row."""
    logits_N_V = logits_N_V.float()
    if sampling.is_greedy:
        tokens_N = logits_N_V.argmax(-1)
        return _drawn(tokens_N, _raw_logprobs(logits_N_V, tokens_N))
    scaled_N_V = logits_N_V if sampling.temperature == 1 else logits_N_V / sampling.temperature
    if sampling.top_k_limit is None and sampling.top_p == 1:
        tokens_N, logprobs_N = _draw_by_cdf(scaled_N_V, uniforms_N)
    else:
        values_N_C, ids_N_C = likeliest(scaled_N_V, sampling)
        indices_N, logprobs_N = _draw_by_cdf(values_N_C, uniforms_N)
        tokens_N = ids_N_C.gather(-1, indices_N[:, None])[:, 0]
    if sampling.logprobs_mode == "raw":
        logprobs_N = _raw_logprobs(logits_N_V, tokens_N)
    return _drawn(tokens_N, logprobs_N)


def likeliest(scaled_N_V: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits and ids of the tokens that pass the filters, largest first.

    Rows may keep different numbers of tokens; in shorter rows the rest of the logits is -inf.
    """
    vocabulary = scaled_N_V.shape[-1]
    if sampling.top_k_limit is not None:
        values_N_C, ids_N_C = scaled_N_V.topk(min(sampling.top_k_limit, vocabulary))
        return _within_mass(values_N_C, values_N_C.logsumexp(-1), sampling.top_p), ids_N_C
    log_total_N = scaled_N_V.logsumexp(-1)
    count = min(_CANDIDATES, vocabulary)
    while True:
        values_N_C, ids_N_C = scaled_N_V.topk(count)
        mass_N = (values_N_C.logsumexp(-1) - log_total_N).exp()
        if count == vocabulary or bool((mass_N >= sampling.top_p).all()):
            return _within_mass(values_N_C, log_total_N, sampling.top_p), ids_N_C
        count = min(count * 8, vocabulary)


def _within_mass(values_N_C: torch.Tensor, log_total_N: torch.Tensor, top_p: float) -> torch.Tensor:
    """Set logits to -inf after the token that reaches the mass. The first token is always kept."""
    if top_p == 1:
        return values_N_C
    probs_N_C = (values_N_C - log_total_N[:, None]).double().exp()
    before_N_C = probs_N_C.cumsum(-1) - probs_N_C
    dropped_N_C = before_N_C >= top_p
    dropped_N_C[:, 0] = False
    return values_N_C.masked_fill(dropped_N_C, -math.inf)


def _draw_by_cdf(values_N_C: torch.Tensor, uniforms_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices drawn from softmax(values), and their log-probs.

    Sums are float64: in float32 the tail of a large vocabulary would be lost against a sum near 1.
    """
    top_N_1 = values_N_C.max(-1, keepdim=True).values
    cdf_N_C = (values_N_C - top_N_1).exp_().cumsum(-1, dtype=torch.float64)
    total_N_1 = cdf_N_C[:, -1:]
    # The product may be rounded up to the total; staying below it finds an index with a probability above 0.
    # The clamp is for NaN logits, which are rejected later.
    targets_N_1 = (uniforms_N.to(cdf_N_C.device)[:, None] * total_N_1).minimum(
        total_N_1.nextafter(torch.zeros_like(total_N_1))
    )
    indices_N_1 = torch.searchsorted(cdf_N_C, targets_N_1, right=True).clamp_(max=cdf_N_C.shape[-1] - 1)
    logprobs_N_1 = (values_N_C.gather(-1, indices_N_1) - top_N_1).double() - total_N_1.log()
    return indices_N_1[:, 0], logprobs_N_1[:, 0]


def _raw_logprobs(logits_N_V: torch.Tensor, tokens_N: torch.Tensor) -> torch.Tensor:
    return logits_N_V.gather(-1, tokens_N[:, None])[:, 0] - logits_N_V.logsumexp(-1)


def _drawn(tokens_N: torch.Tensor, logprobs_N: torch.Tensor) -> Draw:
    drawn = Draw(tokens_N=tokens_N.tolist(), logprobs_N=logprobs_N.tolist())
    if any(map(math.isnan, drawn.logprobs_N)):
        raise RuntimeError("the model's logits are NaN or infinite; its weights are probably broken")
    return drawn
