"""Types of rollouts: a completion, the group of a prompt, the buffer for groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from nemo_rl.data.interfaces import LLMMessageLogType

__all__ = ["Completion", "GroupBuffer", "GroupIntegrity", "PromptGroupRecord"]


@dataclass(frozen=True)
class GroupIntegrity:
    """What happens to a group when a member fails, and which members count in its baseline."""

    on_member_failure: Literal["drop", "shrink", "mask"] = "drop"
    """drop: the group fails with the member's failure, and its siblings are cancelled. shrink: the group has
    only the members that succeeded. mask: a placeholder without generated tokens and without weight in the
    loss takes the place of the failed member."""
    member_attempts: int = 1
    """Attempts of a member after infrastructure failures, the first included, before it counts as failed."""
    min_members: int = 2
    """If fewer members succeed there is no baseline, and the group fails with the first failure."""
    legacy_baseline: bool = False
    """Count members that the environment flagged in the baseline, as published trainers do. Members that
    failed never count."""

    def __post_init__(self) -> None:
        if self.on_member_failure not in ("drop", "shrink", "mask"):
            raise ValueError(
                f"on_member_failure must be drop, shrink or mask, not {self.on_member_failure!r}"
            )
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
    """Observation tokens that were cut off; 0 if `truncated` means an exact fit."""
    final_metadata: dict[str, Any] | None = None
    """The environment's state after the last step. `env_extras` has the state before it."""
    generation_index: int | None = None
    """Its index in the group, which differs from its position if members are missing."""
    failure: str | None = None
    """Set for a placeholder: why the member failed. Its log is the prompt; it neither trains nor votes."""


@dataclass
class PromptGroupRecord:
    """The completions of one prompt, ordered by generation index, unpadded."""

    prompt_idx: int
    prompt: LLMMessageLogType
    extra_env_info: dict[str, Any] | None
    metadata: dict[str, Any]
    completions: list[Completion]
    rollout_metrics: dict[str, Any]
    integrity: GroupIntegrity = field(default_factory=GroupIntegrity)
    """The rules the group was played with. `advantage_audit` reads them."""
    failures: dict[int, str] = field(default_factory=dict)
    """The members that failed: generation index → failure."""
    weight_versions: tuple[int, int] | None = None
    """The policy's weight version when the group began and when it ended."""


class GroupBuffer(Protocol):
    """Where `generate_and_push` puts groups. It reserves a slot first, then commits or removes it."""

    def reserve(self, weight_version: int, target_step: int | None) -> Any:
        """Returns a new group id."""

    async def commit(
        self, group_id: Any, record: PromptGroupRecord, start_weight_version: int, end_weight_version: int
    ) -> None: ...

    async def remove_group(self, group_id: Any) -> None: ...
