"""Grammars, tried out before they are used: the engine drops one that it cannot compile without a word."""

from nemo_gym.local_engine import LocalEngine
from nemo_gym.local_engine.generation import takes_grammar
from responses_api_models.local_model.request_parameters import BadParameterError

_MOST_KNOWN = 256


class Grammars:
    """Remembers those that were tried."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    async def check(self, engine: LocalEngine, grammar: str | None) -> None:
        if grammar is None or grammar in self._taken:
            return
        if not await takes_grammar(engine, grammar):
            raise BadParameterError("the engine cannot hold a generation to this JSON schema; simplify it")
        if len(self._taken) >= _MOST_KNOWN:
            self._taken.clear()
        self._taken.add(grammar)
