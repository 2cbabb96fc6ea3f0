"""How the chat messages of one endpoint look."""

from dataclasses import dataclass

from nemo_gym.formats.reasoning import ReasoningField, ReasoningStyle


@dataclass(frozen=True)
class ChatStyle:
    reasoning: ReasoningStyle = ReasoningField()  # noqa: RUF009 - it has no state
    sends_tokens: bool = False
    """Whether requests include the token fields of the history. Strict endpoints reject unknown fields."""
