"""A request to a batch of them, and what came of it."""

from __future__ import annotations

import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from nemo_rl.models.generation.sampling import Sampling
    from nemo_rl.models.generation.stopping import StopRule


@dataclass(frozen=True)
class Generated:
    """The continuation of one prompt."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    truncated: bool
    """The room ended it, not a stop token or text."""


@dataclass(eq=False)
class Request:
    """What is asked for, and how far it is. Whoever asks waits for `future`, and may cancel it."""

    prompt: list[int]
    room: int
    """Tokens that may be generated; at least 1."""
    sampling: Sampling
    stop: StopRule
    generator: torch.Generator
    """Its own: what neighbours draw changes nothing here."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    truncated: bool = False
    future: Future[Generated] = field(default_factory=Future)
    submitted_s: float = field(default_factory=time.perf_counter)

    @property
    def next_token(self) -> int:
        """The one that the model has not seen."""
        return self.tokens[-1] if self.tokens else self.prompt[-1]

    def take(self, token: int, logprob: float) -> bool:
        """One more; whether it was the last."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.stop.is_met(self.tokens):
            return True
        self.truncated = len(self.tokens) >= self.room
        return self.truncated

    def settle(self) -> None:
        with suppress(InvalidStateError):  # cancelled meanwhile
            self.future.set_result(Generated(self.prompt, self.tokens, self.logprobs, self.truncated))

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)
