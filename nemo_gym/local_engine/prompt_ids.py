"""The prompt of a conversation, as ids: what was sampled is replayed, what is new is rendered."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.formats.token_replay import replayed_prompt
from nemo_gym.formats.tokens import newest_known_turn, without_tokens
from nemo_gym.local_engine.engine import LocalEngine

Message = dict[str, Any]
_TOKENS = {"parse_special": True, "add_special": False}


class ReplayError(ValueError):
    """A history whose tokens are known and that cannot be continued with them."""


@dataclass(frozen=True)
class Conversation:
    """What the engine's chat template renders."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    template_kwargs: dict[str, Any]

    async def prompt(self, engine: LocalEngine, eos_token_id: int | None) -> list[int]:
        """The ids to continue."""
        whole = await self._rendered(engine, self.messages, is_to_continue=True)
        turn = newest_known_turn(self.messages)
        if turn is None:
            return whole
        up_to_turn = await self._rendered(engine, self.messages[: turn.position + 1], is_to_continue=False)
        try:
            return replayed_prompt(turn.seen, up_to_turn, whole, eos_token_id)
        except AssertionError as error:
            raise ReplayError(str(error)) from error

    async def _rendered(
        self, engine: LocalEngine, messages: Sequence[Message], *, is_to_continue: bool
    ) -> list[int]:
        body: dict[str, Any] = {"messages": [without_tokens(message) for message in messages]}
        body["add_generation_prompt"] = is_to_continue
        if self.tools:
            body["tools"] = self.tools
        if self.template_kwargs:
            body["chat_template_kwargs"] = self.template_kwargs
        text = (await engine.ask("/apply-template", body))["prompt"]
        tokens: list[int] = (await engine.ask("/tokenize", {"content": text, **_TOKENS}))["tokens"]
        return tokens


async def only_token(engine: LocalEngine, text: str) -> int | None:
    """The token that a text is, such as a special one; None where it is not one."""
    tokens: list[int] = (await engine.ask("/tokenize", {"content": text, **_TOKENS}))["tokens"]
    return tokens[0] if len(tokens) == 1 else None


async def ends_turns_with(engine: LocalEngine, token: int | None) -> bool:
    """Whether the chat template ends the model's turns with a token; replay relies on it."""
    spoken = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    return token in await Conversation(spoken, [], {})._rendered(engine, spoken, is_to_continue=False)
