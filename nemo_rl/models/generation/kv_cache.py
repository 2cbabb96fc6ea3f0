"""Keys and values of sequences: one slot each, column = position.

`SlotCache` is what a model takes as `past_key_values`. A pass names its slots and columns first (`Window`);
the model's layers then write their new keys there and read all columns of these slots up to the window's
width. A pass over the slots 0 to n-1 reads them in place, without a copy.

Columns past a sequence's length hold zeros or what was there before: finite, and masked by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

_COLUMN_STEP = 64


@dataclass(frozen=True)
class Window:
    """What a pass over B slots and Q columns each writes and reads; T of the B × Q tokens are no padding."""

    slots: list[int]
    width: int
    """Columns that are read: the longest sequence, new tokens included."""
    batch_T: torch.Tensor
    query_T: torch.Tensor
    slot_T: torch.Tensor
    column_T: torch.Tensor

    @property
    def is_leading(self) -> bool:
        """The slots are the first ones, in order."""
        return self.slots == list(range(len(self.slots)))


class SlotCache:
    """All layers' keys and values, `[slots, heads, columns, dim]`; columns are added as they are needed."""

    def __init__(self, slots: int, max_columns: int) -> None:
        self._slots = slots
        self._max_columns = max_columns
        self._columns = 0
        self._tensors: dict[tuple[str, int], torch.Tensor] = {}
        self._window: Window | None = None
        self._is_leading = False

    def open(self, window: Window) -> None:
        """The next pass's window."""
        if window.width > self._columns:
            self._grow(window.width)
        self._window = window
        self._is_leading = window.is_leading

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by each layer of the model: new keys and values `[B, heads, Q, dim]` for all up to them."""
        return self._put("keys", key_states, layer_idx), self._put("values", value_states, layer_idx)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Asked by some models that then do not use it: positions and masks are always given."""
        return self._window.width if self._window is not None else 0

    def copy(self, source: int, target: int, length: int) -> None:
        for tensor in self._tensors.values():
            tensor[target, :, :length] = tensor[source, :, :length]

    def swap(self, first: int, second: int, first_length: int, second_length: int) -> None:
        """Exchange two slots, of which so many columns matter."""
        for tensor in self._tensors.values():
            kept = tensor[first, :, :first_length].clone()
            tensor[first, :, :second_length] = tensor[second, :, :second_length]
            tensor[second, :, :first_length] = kept

    def clear(self) -> None:
        """Give the memory back."""
        self._tensors.clear()
        self._columns = 0
        self._window = None

    @property
    def is_allocated(self) -> bool:
        return bool(self._tensors)

    def _put(self, kind: str, states: torch.Tensor, layer: int) -> torch.Tensor:
        window = self._window
        if window is None:
            raise RuntimeError("the cache has no window; a pass opens one first")
        stored = self._tensors.get((kind, layer))
        if stored is None:
            shape = (self._slots, states.shape[1], self._columns, states.shape[3])
            stored = self._tensors[kind, layer] = states.new_zeros(shape)
        stored[window.slot_T, :, window.column_T] = states[window.batch_T, :, window.query_T]
        if self._is_leading:
            return stored[: len(window.slots), :, : window.width]
        return stored[window.slots, :, : window.width]

    def _grow(self, columns: int) -> None:
        doubled = max(columns, 2 * self._columns)
        rounded = -(-doubled // _COLUMN_STEP) * _COLUMN_STEP
        self._columns = max(columns, min(rounded, self._max_columns))
        for key, old in self._tensors.items():
            slots, heads, width, dim = old.shape
            new = old.new_zeros((slots, heads, self._columns, dim))
            new[:, :, :width] = old
            self._tensors[key] = new
