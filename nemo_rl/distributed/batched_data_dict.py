"""A batch: a dictionary of tensors and lists whose first dimension is the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    from typing import Self

    import torch
else:
    torch = lazy("torch")

T = TypeVar("T")


class BatchedDataDict(dict[str, Any], Generic[T]):
    """`BatchedDataDict[Spec](input_ids=…)`; the type parameter documents the keys."""

    @property
    def size(self) -> int:
        """Number of rows."""
        for value in self.values():
            return len(value)
        return 0

    @classmethod
    def from_batches(
        cls, batches: Sequence[Mapping[str, Any]], pad_value_dict: Mapping[str, float] | None = None
    ) -> Self:
        """Join batches. 2-D tensors are padded on the right, with 0 unless `pad_value_dict` has the key."""
        pads = pad_value_dict or {}
        if not batches:
            return cls()
        for batch in batches:
            if batch.keys() != batches[0].keys():
                raise ValueError(
                    f"batches have different keys: {sorted(batch)} and {sorted(batches[0])}; "
                    "all must have the same"
                )
        return cls({key: _joined([batch[key] for batch in batches], pads.get(key, 0)) for key in batches[0]})

    def slice(self, start: int, end: int) -> Self:
        return type(self)({key: value[start:end] for key, value in self.items()})

    def select_indices(self, indices: Sequence[int] | torch.Tensor) -> Self:
        """These rows, in this order."""
        rows = [int(index) for index in indices]
        return type(self)({key: _selected(value, rows) for key, value in self.items()})

    def repeat_interleave(self, num_repeats: int) -> Self:
        """Every row `num_repeats` times; the copies of a row are adjacent."""
        return self.select_indices([row for row in range(self.size) for _ in range(num_repeats)])

    def to(self, device: str | torch.device) -> Self:
        """Move the tensors to another device. In place, as published."""
        for key, value in self.items():
            if isinstance(value, torch.Tensor):
                self[key] = value.to(device)
        return self


def _selected(value: Any, rows: list[int]) -> Any:
    if isinstance(value, torch.Tensor):
        return value[torch.tensor(rows, dtype=torch.int64, device=value.device)]
    return [value[row] for row in rows]


def _joined(values: list[Any], pad: float) -> Any:
    if not isinstance(values[0], torch.Tensor):
        return [item for value in values for item in value]
    if values[0].dim() == 2:
        width = max(value.shape[1] for value in values)
        values = [torch.nn.functional.pad(value, (0, width - value.shape[1]), value=pad) for value in values]
    return torch.cat(values)
