"""One prompt, and the message log of its conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    import torch

    LLMMessageLogType = list[dict[str, Any]]
    """Messages: `role` and `content` are strings, `token_ids` and `generation_logprobs` 1-D tensors."""
    VLMMessageLogType = list[dict[str, Any]]
    """The same, and packed media tensors are allowed."""
else:
    torch = lazy("torch")

__all__ = ["DatumSpec", "LLMMessageLogType", "VLMMessageLogType"]


class _RequiredKeys(TypedDict):
    message_log: list[dict[str, str | torch.Tensor]]
    """The conversation so far, already tokenised."""
    length: int
    """Number of tokens in the message log."""
    extra_env_info: dict[str, Any] | None
    """Native path: the environment's state. Gym path: the row."""
    loss_multiplier: float
    """0 removes the sample from the loss."""
    idx: int
    """Becomes the group's `prompt_idx`."""


class DatumSpec(_RequiredKeys, total=False):
    """One prompt. Other keys are allowed and ignored."""

    task_name: str
    """Native path: selects the environment."""
    stop_strings: list[str] | None
    """Stop strings of the first turn."""


def __getattr__(name: str) -> Any:
    if name == "LLMMessageLogType":
        return list[dict[str, str | torch.Tensor]]
    if name == "VLMMessageLogType":
        return list[dict[str, str | torch.Tensor | list[torch.Tensor]]]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
