"""The engine: start it, call it, load other weights into it, stop it.

Invariant: a generation uses the same weights from its first token to its last, and no generation is lost when
the weights change. After `stop`, no process of the engine remains.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.local_engine.engine_settings import EngineSettings
from nemo_gym.local_engine.serving import EngineError, Serving
from nemo_gym.local_engine.uses import Uses

__all__ = ["EngineError", "LocalEngine"]

logger = logging.getLogger(__name__)


class LocalEngine:
    """Call `start` first, then `call` any number of times, and `stop` at the end."""

    def __init__(self, settings: EngineSettings) -> None:
        self.slots = asyncio.Semaphore(settings.slots)
        """Held during a generation."""
        self._serving = Serving(settings)
        self._earlier_deaths = 0
        self._uses = Uses()
        self._is_stopping = False
        self._changes: set[asyncio.Task[None]] = set()
        self._one_change = asyncio.Lock()
        self._may_begin = asyncio.Event()
        """Cleared while other weights are loaded: requests that arrive then wait and use the new weights."""
        self._may_begin.set()

    @property
    def settings(self) -> EngineSettings:
        """Settings of the weights that the caller uses or, outside `same_weights`, would use."""
        return self._served_by.settings

    @property
    def token_bytes(self) -> dict[int, bytes]:
        """The bytes of each token id; filled when first needed."""
        return self._served_by.token_bytes

    @property
    def pid(self) -> int | None:
        return self._serving.pid

    @property
    def deaths(self) -> int:
        return self._earlier_deaths + self._serving.deaths

    async def start(self) -> None:
        """Start the process and wait until it has loaded the weights."""
        await self._serving.start()

    async def stop(self, drain_s: float) -> None:
        """Wait at most `drain_s` for running requests, then end the process."""
        self._is_stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self._uses.wait_until_unused()
        changes = set(self._changes)
        for change in changes:
            change.cancel()
        await asyncio.gather(*changes, return_exceptions=True)
        await self._serving.stop()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """`stop` waits for code inside this block. Entering it raises EngineError after that."""
        if self._is_stopping and not self._uses:
            raise EngineError("", "the engine is being stopped")
        with self._uses.counted():
            yield

    @asynccontextmanager
    async def same_weights(self) -> AsyncIterator[None]:
        """All calls inside this block use the same weights, even if others are loaded meanwhile."""
        with self.in_use():
            if (serving := self._bound) is None:
                await self._may_begin.wait()
                serving = self._serving
            with serving.uses.counted():
                token = _BOUND.set((self, serving))
                try:
                    yield
                finally:
                    _BOUND.reset(token)

    async def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The engine's response. An error status raises EndpointError, a dead engine EngineError."""
        async with self.same_weights():
            return await self._served_by.call(path, body)

    async def vocabulary_size(self) -> int:
        """The number of tokens in the vocabulary."""
        async with self.same_weights():
            return await self._served_by.vocabulary_size()

    async def reload(self, model_path: Path, weight_version: int | None = None) -> None:
        """Serve other weights of the same model; returns when nothing uses the old ones any more.

        Running generations finish with the old weights. Those that arrive or wait for a slot begin when the
        new weights are loaded. If loading fails, ConfigError is raised and the old weights stay in use.
        """
        settings = replace(self._serving.settings, model_path=model_path, weight_version=weight_version)
        change = asyncio.create_task(self._change(settings))
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        await asyncio.shield(change)  # the change is completed even if the caller is cancelled

    async def _change(self, settings: EngineSettings) -> None:
        async with self._one_change:
            self._may_begin.clear()
            try:
                new = await self._started(settings)
                old, self._serving = self._serving, new
                self._earlier_deaths += old.deaths
            finally:
                self._may_begin.set()
            logger.info("the engine serves %s", settings.model_path)
            await old.stop_unused()

    async def _started(self, settings: EngineSettings) -> Serving:
        new = Serving(settings)
        await new.start()
        try:
            await self._check_vocabulary(new)
            if self._is_stopping:
                raise EngineError("", "the engine is being stopped")
        except BaseException:
            await new.stop()
            raise
        return new

    async def _check_vocabulary(self, new: Serving) -> None:
        """Callers hold token ids of the old weights; these must mean the same with the new ones."""
        old = self._serving
        try:
            old_size = await old.vocabulary_size()
        except EngineError:  # the old engine has failed for good: there is nothing to compare with
            return
        new_size = await new.vocabulary_size()
        if new_size != old_size:
            raise ConfigError(
                f"{new.settings.model_path} has {new_size} tokens, {old.settings.model_path} has {old_size}; "
                "only weights of the same model can be loaded into a running engine"
            )

    @property
    def _served_by(self) -> Serving:
        return self._bound or self._serving

    @property
    def _bound(self) -> Serving | None:
        """The weights that the current task already uses, inside `same_weights`."""
        bound = _BOUND.get()
        return bound[1] if bound is not None and bound[0] is self else None


_BOUND: ContextVar[tuple[LocalEngine, Serving] | None] = ContextVar("weights_in_use", default=None)
