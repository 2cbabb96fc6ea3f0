"""The thread that generates: continuous batching.

Between two steps, waiting requests join while there are free rows, and finished or cancelled requests leave.
An exception of the model fails the requests in flight; the thread continues with later ones. Only this thread
calls the model. After the last request, the model is in its original state (`inference.py`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_rl.experience.failures import NoHealthyShards
from nemo_rl.lazy import lazy
from nemo_rl.models.generation.inference import generating
from nemo_rl.models.generation.sampling import Sampling, draw

if TYPE_CHECKING:
    import torch

    from nemo_rl.models.generation.requests import Request
    from nemo_rl.models.generation.slot_decoder import SlotDecoder
else:
    torch = lazy("torch")

logger = logging.getLogger(__name__)


@dataclass
class Meter:
    """Totals since the start."""

    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0
    """Time from a request to its joining the batch, summed over requests."""


class BatchingLoop:
    """`submit` a request and wait for its future; any thread may. `close` ends the thread."""

    def __init__(self, decoder: SlotDecoder) -> None:
        self.meter = Meter()
        self._decoder = decoder
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._rows: list[Request] = []
        self._finished: list[Request] = []
        """Their futures are not set yet."""
        self._pauses = 0
        self._is_busy = False
        self._is_closed = False
        self._forget_first = False
        self._thread: threading.Thread | None = None
        self._noted_s = 0.0
        self._process = os.getpid()
        """The thread does not exist in a forked process."""

    def submit(self, request: Request) -> None:
        with self._changed:
            if self._is_closed:
                raise NoHealthyShards("this generation backend is closed; build a new one")
            if self._process != os.getpid():
                raise NoHealthyShards(
                    "this generation backend was built in another process; build one here, after the fork"
                )
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="generation", daemon=True)
                self._thread.start()
            self._waiting.append(request)
            self._changed.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No request runs inside this context: those in flight finish first, others wait."""
        with self._changed:
            self._pauses += 1
        try:
            self._wait_until_idle()
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    def forget(self) -> bool:
        """Later requests use nothing computed before; returns whether there was anything."""
        with self._changed:
            if not self._is_busy:
                return self._decoder.forget()
            self._forget_first = True
            return True

    def release(self) -> None:
        """Free the memory of the cache once nothing is in flight."""
        with self.paused():
            self._decoder.release()

    def metrics(self) -> dict[str, float]:
        """Totals and means since the start."""
        meter = self.meter
        return {
            "requests": meter.requests,
            "prompt_tokens": meter.prompt_tokens,
            "computed_prompt_tokens": self._decoder.computed_prompt_tokens,
            "generated_tokens": meter.generated_tokens,
            "busy_s": meter.busy_s,
            "tokens_per_s": meter.generated_tokens / meter.busy_s if meter.busy_s else 0.0,
            "mean_batch_size": meter.generated_tokens / meter.steps if meter.steps else 0.0,
            "mean_wait_s": meter.waited_s / meter.requests if meter.requests else 0.0,
        }

    def close(self) -> None:
        """Fail the unfinished requests and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        while self._waiting:
            self._waiting.popleft().fail(
                NoHealthyShards("the generation backend was closed before this request ran")
            )

    def _wait_until_idle(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError("the generation thread cannot wait for itself; call this from another thread")
        with self._changed:
            self._changed.wait_for(lambda: not self._is_busy)

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                with generating(self._decoder.model):
                    self._generate()
            except Exception as error:  # boundary: an error of the model fails the requests in flight
                logger.warning("%s requests failed because the model raised %r", len(self._rows), error)
                self._drop_rows(error)
                self._decoder.forget()  # a change may be incomplete
            with self._changed:
                self._note_busy()
                self._is_busy = False
                self._changed.notify_all()
            self._report_finished()

    def _wait_for_work(self) -> bool:
        """Wait for requests; returns False once the loop is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or (self._waiting and not self._pauses))
            self._is_busy = not self._is_closed
            self._noted_s = time.perf_counter()
            return self._is_busy

    def _note_busy(self) -> None:
        now_s = time.perf_counter()
        self.meter.busy_s += now_s - self._noted_s
        self._noted_s = now_s

    def _generate(self) -> None:
        """Step until no request is left."""
        while not self._is_closed:
            self._drop_cancelled()
            self._admit()
            if not self._rows:
                return
            self._step()
            self._note_busy()
            if self._rows or self._waiting:  # otherwise the model is restored first
                self._report_finished()
        self._drop_rows(NoHealthyShards("the generation backend was closed while this request ran"))

    def _admit(self) -> None:
        with self._changed:
            if self._forget_first:
                self._decoder.forget()
                self._forget_first = False
            joining = [] if self._pauses else self._next_waiting()
            self._rows.extend(joining)  # from here on an error fails them too
        joining.sort(key=lambda request: -self._decoder.held(request.prompt))
        if joining:
            self._rows[-len(joining) :] = joining
            self._decoder.join([request.prompt for request in joining])

    def _next_waiting(self) -> list[Request]:
        taken: list[Request] = []
        now_s = time.perf_counter()
        while self._waiting and len(self._rows) + len(taken) < self._decoder.max_rows:
            request = self._waiting.popleft()
            if not request.future.cancelled():
                taken.append(request)
                self.meter.requests += 1
                self.meter.prompt_tokens += len(request.prompt)
                self.meter.waited_s += now_s - request.submitted_s
        return taken

    def _step(self) -> None:
        logits_N_V = self._decoder.step([request.next_token for request in self._rows])
        self.meter.steps += 1
        self.meter.generated_tokens += len(self._rows)
        ended: list[int] = []
        for sampling in {request.sampling for request in self._rows}:
            rows = [row for row, request in enumerate(self._rows) if request.sampling == sampling]
            ended += self._draw(rows, logits_N_V, sampling)
        self._finished += [self._rows[row] for row in ended]
        self._leave(ended)

    def _draw(self, rows: list[int], logits_N_V: torch.Tensor, sampling: Sampling) -> list[int]:
        """Draw a token for each of these rows; returns the rows that ended."""
        uniforms = [
            torch.rand((), dtype=torch.float64, generator=self._rows[row].generator).item() for row in rows
        ]
        own_N_V = logits_N_V if len(rows) == len(self._rows) else logits_N_V[rows]
        drawn = draw(own_N_V, sampling, torch.tensor(uniforms, dtype=torch.float64))
        chosen = zip(rows, drawn.tokens_N, drawn.logprobs_N, strict=True)
        return [row for row, token, logprob in chosen if self._rows[row].take(token, logprob)]

    def _drop_cancelled(self) -> None:
        self._leave([row for row, request in enumerate(self._rows) if request.future.cancelled()])

    def _leave(self, rows: list[int]) -> None:
        for row in sorted(rows, reverse=True):  # the last row takes the place of one that leaves
            self._decoder.leave(row)
            self._rows[row] = self._rows[-1]
            self._rows.pop()

    def _report_finished(self) -> None:
        for request in self._finished:
            request.finish()
        self._finished.clear()

    def _drop_rows(self, error: Exception) -> None:
        for request in self._rows:
            request.fail(error)
        self._rows.clear()
        while self._decoder.rows:
            self._decoder.leave(self._decoder.rows - 1)
