"""One request to the generation backend, and its result."""

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
    """Ended by the token limit, not by a stop token or stop string."""


@dataclass(eq=False)
class Request:
    """A prompt and its progress. The caller waits for `future` and may cancel it."""

    prompt: list[int]
    room: int
    """Tokens that may be generated; at least 1."""
    sampling: Sampling
    stop: StopRule
    generator: torch.Generator
    """Not shared: other requests in the batch do not affect the draws of this one."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    truncated: bool = False
    future: Future[Generated] = field(default_factory=Future)
    submitted_s: float = field(default_factory=time.perf_counter)

    @property
    def next_token(self) -> int:
        """The token that the model has not seen yet."""
        return self.tokens[-1] if self.tokens else self.prompt[-1]

    def take(self, token: int, logprob: float) -> bool:
        """Add a token; returns whether it was the last."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.stop.is_met(self.tokens):
            return True
        self.truncated = len(self.tokens) >= self.room
        return self.truncated

    def finish(self) -> None:
        with suppress(InvalidStateError):  # cancelled in the meantime
            self.future.set_result(Generated(self.prompt, self.tokens, self.logprobs, self.truncated))

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)
