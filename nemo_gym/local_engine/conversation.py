"""The prompt of a conversation, as ids: what was sampled is replayed, what is new is rendered."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.formats.token_replay import replayed_prompt
from nemo_gym.local_engine.engine import LocalEngine

Message = dict[str, Any]
_TOKENS = {"parse_special": True, "add_special": False}


@dataclass(frozen=True)
class Conversation:
    """What the engine's chat template renders."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    template_kwargs: dict[str, Any]

    async def prompt(self, engine: LocalEngine, eos_token_id: int | None) -> list[int]:
        """The ids to continue."""
        whole = await self._rendered(engine, self.messages, is_to_continue=True)
        newest = _newest_with_tokens(self.messages)
        if newest is None:
            return whole
        message = self.messages[newest]
        seen = [*message["prompt_token_ids"], *message["generation_token_ids"]]
        up_to_turn = await self._rendered(engine, self.messages[: newest + 1], is_to_continue=False)
        return replayed_prompt(seen, up_to_turn, whole, eos_token_id)

    async def _rendered(
        self, engine: LocalEngine, messages: Sequence[Message], *, is_to_continue: bool
    ) -> list[int]:
        body: dict[str, Any] = {"messages": [_plain(message) for message in messages]}
        body["add_generation_prompt"] = is_to_continue
        if self.tools:
            body["tools"] = self.tools
        if self.template_kwargs:
            body["chat_template_kwargs"] = self.template_kwargs
        text = (await engine.ask("/apply-template", body))["prompt"]
        tokens: list[int] = (await engine.ask("/tokenize", {"content": text, **_TOKENS}))["tokens"]
        return tokens


def _newest_with_tokens(messages: Sequence[Message]) -> int | None:
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].get("generation_token_ids"):
            return position
    return None


def _plain(message: Message) -> Message:
    """What a template may show."""
    return {key: value for key, value in message.items() if not key.startswith(("prompt_", "generation_"))}


async def only_token(engine: LocalEngine, text: str) -> int | None:
    """The token that a text is, such as a special one; None where it is not one."""
    tokens: list[int] = (await engine.ask("/tokenize", {"content": text, **_TOKENS}))["tokens"]
    return tokens[0] if len(tokens) == 1 else None
