"""Tests grammars before they are used: the engine silently ignores a grammar that it cannot compile."""

from nemo_gym.local_engine import LocalEngine
from nemo_gym.local_engine.engine_generation import accepts_grammar
from responses_api_models.local_model.request_parameters import BadParameterError

_MAX_REMEMBERED = 256


class Grammars:
    """Remembers the grammars that the engine accepted."""

    def __init__(self) -> None:
        self._accepted: set[str] = set()

    async def check(self, engine: LocalEngine, grammar: str | None) -> None:
        if grammar is None or grammar in self._accepted:
            return
        if not await accepts_grammar(engine, grammar):
            raise BadParameterError(
                "response_format or tools: the engine cannot enforce this JSON schema; simplify it"
            )
        if len(self._accepted) >= _MAX_REMEMBERED:
            self._accepted.clear()
        self._accepted.add(grammar)
