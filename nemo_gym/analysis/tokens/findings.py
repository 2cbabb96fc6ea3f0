"""The findings of a token check, as data: counts, and the first places of each finding."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.analysis.tokens.breaks import Cause
from nemo_gym.analysis.tokens.defects import Defect


@dataclass(frozen=True)
class TokenPair:
    """The tokens at one position: in the history, and in the next prompt."""

    position: int
    seen_id: int | None
    """None past the end of the history."""
    seen_text: str | None
    """None if no source knows the text."""
    prompt_id: int | None
    prompt_text: str | None


@dataclass(frozen=True)
class Break:
    """A turn whose prompt does not start with the tokens of the previous turn."""

    line: int
    key: str | None
    """Key of the rollout (`task:rollout`); None if it has no key."""
    turn: int
    """Number of the model call that has this prompt, from 1."""
    item: int
    """Index in `response.output` of the item with its tokens."""
    cause: Cause
    position: int
    """Index of the first token that differs."""
    seen_length: int
    prompt_length: int
    text_source: str | None
    """Where the texts come from; None if there are none."""
    seen_text: str | None
    """Text around the difference."""
    prompt_text: str | None
    tokens: list[TokenPair]


@dataclass(frozen=True)
class Place:
    """An output item."""

    line: int
    key: str | None
    item: int


@dataclass
class DefectCount:
    """How often one defect was found."""

    items: int = 0
    values: int = 0
    """Single ids, log-probabilities or fields."""
    first: list[Place] = field(default_factory=list)


@dataclass
class TokenReport:
    """The result of `report_tokens`."""

    path: Path
    rollouts: int = 0
    rollouts_with_tokens: int = 0
    rollouts_without_tokens: int = 0
    masked_rollouts: int = 0
    """Rollouts with tokens that the environment excluded from training (`mask_sample`)."""
    trainable_rollouts: int = 0
    """Rollouts with tokens and without break, defect or mask."""
    turns: int = 0
    follow_up_turns: int = 0
    """Turns that follow another turn of the same rollout, if the ids of both can be compared."""
    continuous_turns: int = 0
    """Follow-up turns whose prompt starts with all tokens of the previous turn."""
    unchecked_turns: int = 0
    """Turns that could not be compared with the previous turn because one of the two has a defect."""
    prompt_tokens: int = 0
    """Length of the last prompt of each rollout, summed."""
    generated_tokens: int = 0
    trainable_tokens: int = 0
    """The generated tokens of trainable rollouts."""
    log_probs_modes: dict[str, int] = field(default_factory=dict)
    """Number of turns by kind of log-probabilities."""
    causes: dict[Cause, int] = field(default_factory=dict)
    """Number of breaks by likely cause."""
    breaks: list[Break] = field(default_factory=list)
    """The first breaks."""
    defects: dict[Defect, DefectCount] = field(default_factory=dict)
    bad_lines: int = 0
    """Number of lines left out."""

    @property
    def break_count(self) -> int:
        return self.follow_up_turns - self.continuous_turns

    @property
    def continuous_share(self) -> float | None:
        """Share of the follow-up turns; None if there are none."""
        return self.continuous_turns / self.follow_up_turns if self.follow_up_turns else None

    @property
    def is_clean(self) -> bool:
        """Whether no break and no defect was found."""
        return not self.break_count and not self.defects

    def as_data(self) -> dict[str, Any]:
        """The report as JSON data."""
        counts = {"break_count": self.break_count, "continuous_share": self.continuous_share}
        return asdict(self) | counts | {"path": str(self.path), "is_clean": self.is_clean}
