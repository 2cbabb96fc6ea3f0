"""The prompt of a conversation as token ids: known ids are replayed, the rest is rendered and tokenised."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.formats.token_fields import newest_known_turn, without_tokens
from nemo_gym.formats.token_replay import replayed_prompt
from nemo_gym.local_engine.engine import LocalEngine

Message = dict[str, Any]
_TOKENS = {"parse_special": True, "add_special": False}


class ReplayError(ValueError):
    """A history with known token ids that cannot be replayed."""


@dataclass(frozen=True)
class Conversation:
    """The input of the engine's chat template."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    template_kwargs: dict[str, Any]

    async def prompt(self, engine: LocalEngine, eos_token_id: int | None) -> list[int]:
        """The token ids of the prompt."""
        whole = await self._rendered(engine, self.messages, add_generation_prompt=True)
        turn = newest_known_turn(self.messages)
        if turn is None:
            return whole
        up_to_turn = await self._rendered(
            engine, self.messages[: turn.position + 1], add_generation_prompt=False
        )
        try:
            return replayed_prompt(turn.seen, up_to_turn, whole, eos_token_id)
        except AssertionError as error:
            raise ReplayError(str(error)) from error

    async def _rendered(
        self, engine: LocalEngine, messages: Sequence[Message], *, add_generation_prompt: bool
    ) -> list[int]:
        body: dict[str, Any] = {"messages": [without_tokens(message) for message in messages]}
        body["add_generation_prompt"] = add_generation_prompt
        if self.tools:
            body["tools"] = self.tools
        if self.template_kwargs:
            body["chat_template_kwargs"] = self.template_kwargs
        text = (await engine.call("/apply-template", body))["prompt"]
        tokens: list[int] = (await engine.call("/tokenize", {"content": text, **_TOKENS}))["tokens"]
        return tokens


async def only_token(engine: LocalEngine, text: str) -> int | None:
    """The token of a text that is a single token, such as a special one; None if it is not."""
    tokens: list[int] = (await engine.call("/tokenize", {"content": text, **_TOKENS}))["tokens"]
    return tokens[0] if len(tokens) == 1 else None


async def ends_turns_with(engine: LocalEngine, token: int | None) -> bool:
    """Whether the chat template ends assistant turns with `token`; replay relies on it."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rendered = await Conversation(messages, [], {})._rendered(engine, messages, add_generation_prompt=False)
    return token in rendered
