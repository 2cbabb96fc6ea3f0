"""What a check of tokens finds, as data: counts, and the first places of what is wrong."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.analysis.tokens.breaks import Cause
from nemo_gym.analysis.tokens.defects import Defect


@dataclass(frozen=True)
class TokenPair:
    """The tokens at one position: what was seen before, and what the next prompt has there."""

    position: int
    seen_id: int | None
    """None where what was seen has ended."""
    seen_text: str | None
    """None where no source knows it."""
    prompt_id: int | None
    prompt_text: str | None


@dataclass(frozen=True)
class Break:
    """A turn whose prompt does not begin with the tokens of the turn before."""

    line: int
    key: str | None
    """Of the rollout: `task:rollout`; None where it has none."""
    turn: int
    """From 1: the model call whose prompt it is."""
    item: int
    """From 0: where in `response.output` its tokens stand."""
    cause: Cause
    position: int
    """From 0: of the first token that differs."""
    seen_length: int
    prompt_length: int
    text_source: str | None
    """None where there are no texts."""
    seen_text: str | None
    """Around the difference."""
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
    """What `report_tokens` found."""

    path: Path
    rollouts: int = 0
    rollouts_with_tokens: int = 0
    rollouts_without_tokens: int = 0
    masked_rollouts: int = 0
    """With tokens, which the environment took out of training (`mask_sample`)."""
    trainable_rollouts: int = 0
    """With tokens, without break, defect or mask."""
    turns: int = 0
    follow_up_turns: int = 0
    """Turns after another of the same rollout, as far as both have ids that can be compared."""
    continuous_turns: int = 0
    """Follow-up turns whose prompt begins with all tokens of the turn before."""
    unchecked_turns: int = 0
    """Turns after another that could not be compared, since one of them has a defect."""
    prompt_tokens: int = 0
    """Of the last prompt of each rollout."""
    generated_tokens: int = 0
    trainable_tokens: int = 0
    """The generated tokens of trainable rollouts."""
    log_probs_modes: dict[str, int] = field(default_factory=dict)
    """How many turns have which log-probabilities."""
    causes: dict[Cause, int] = field(default_factory=dict)
    """How many breaks have which likely cause."""
    breaks: list[Break] = field(default_factory=list)
    """The first of them."""
    defects: dict[Defect, DefectCount] = field(default_factory=dict)
    bad_lines: int = 0
    """Lines left out."""

    @property
    def break_count(self) -> int:
        return self.follow_up_turns - self.continuous_turns

    @property
    def continuous_share(self) -> float | None:
        """Of the follow-up turns; None where there are none."""
        return self.continuous_turns / self.follow_up_turns if self.follow_up_turns else None

    @property
    def is_clean(self) -> bool:
        """Whether there is neither a break nor a defect."""
        return not self.break_count and not self.defects

    def as_data(self) -> dict[str, Any]:
        """The same for JSON."""
        counts = {"break_count": self.break_count, "continuous_share": self.continuous_share}
        return asdict(self) | counts | {"path": str(self.path), "is_clean": self.is_clean}
