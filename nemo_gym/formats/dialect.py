"""How one endpoint's chat messages look: what the converters have to know about it."""

from dataclasses import dataclass

from nemo_gym.formats.reasoning import ReasoningField, ReasoningStyle


@dataclass(frozen=True)
class Dialect:
    reasoning: ReasoningStyle = ReasoningField()  # noqa: RUF009 - it has no state
    sends_tokens: bool = False
    """Whether token fields of the history go into requests; strict endpoints refuse unknown fields."""
