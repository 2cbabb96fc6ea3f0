"""The vocabulary of rollouts: a completion, the group of a prompt, where groups go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from nemo_rl.data.interfaces import LLMMessageLogType

__all__ = ["Completion", "GroupBuffer", "GroupIntegrity", "PromptGroupRecord"]


@dataclass(frozen=True)
class GroupIntegrity:
    """What becomes of a group when a member fails, and who votes in its baseline."""

    on_member_failure: Literal["drop", "shrink", "mask"] = "drop"
    """drop: the whole group fails with the member's failure, its siblings are cancelled. shrink: the group is
    those who succeeded. mask: the failed one stays in its place, with an empty answer and no weight."""
    member_attempts: int = 1
    """Tries of a member that infrastructure failed, before it counts as failed."""
    min_members: int = 2
    """Fewer that succeeded give no baseline: the group fails with the first failure."""
    legacy_baseline: bool = False
    """Let members that the environment flagged vote in the baseline, as published trainers do. Those that
    failed never vote."""

    def __post_init__(self) -> None:
        if self.on_member_failure not in ("drop", "shrink", "mask"):
            raise ValueError(f"on_member_failure is drop, shrink or mask, not {self.on_member_failure!r}")
        for name in ("member_attempts", "min_members"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")


@dataclass
class Completion:
    """One rollout of a prompt."""

    message_log: LLMMessageLogType
    env_extras: dict[str, Any] | None
    truncated: bool
    reward: float
    overflow_tokens: int = 0
    """Tokens of observations that were cut off; 0 where `truncated` is an exact fit."""
    final_metadata: dict[str, Any] | None = None
    """The environment's state as its last step gave it, which `env_extras` does not show."""
    generation_index: int | None = None
    """Its number in the group, where others are missing."""
    failure: str | None = None
    """Why it is a placeholder: it failed, neither trains nor votes, and its log is the prompt alone."""


@dataclass
class PromptGroupRecord:
    """The completions of one prompt, ordered by generation index; nothing is batched or padded."""

    prompt_idx: int
    prompt: LLMMessageLogType
    extra_env_info: dict[str, Any] | None
    metadata: dict[str, Any]
    completions: list[Completion]
    rollout_metrics: dict[str, Any]
    integrity: GroupIntegrity = field(default_factory=GroupIntegrity)
    """The rules under which it was played, for those who compute advantages."""
    failures: dict[int, str] = field(default_factory=dict)
    """Generation index → why, of members that failed."""
    weight_versions: tuple[int, int] | None = None
    """Of the policy, when the group began and when it ended."""


class GroupBuffer(Protocol):
    """Where `generate_and_push` puts groups: a slot is reserved first, and filled or given back."""

    def reserve(self, weight_version: int, target_step: int | None) -> Any:
        """A fresh group id."""

    async def commit(
        self, group_id: Any, record: PromptGroupRecord, start_weight_version: int, end_weight_version: int
    ) -> None: ...

    async def remove_group(self, group_id: Any) -> None: ...
