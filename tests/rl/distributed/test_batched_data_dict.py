"""Batches can be joined, sliced and repeated."""

import pytest
import torch

from nemo_rl.distributed.batched_data_dict import BatchedDataDict

pytestmark = pytest.mark.torch


def batch(rows: int, width: int, first: int = 1) -> BatchedDataDict[object]:
    ids = torch.arange(first, first + rows * width).reshape(rows, width)
    return BatchedDataDict[object](
        ids=ids, lengths=torch.full((rows,), width), names=[f"r{n}" for n in range(rows)]
    )


def test_a_batch_is_a_mapping_with_a_size() -> None:
    one = batch(3, 2)
    assert one.size == 3 and set(one) == {"ids", "lengths", "names"} and "ids" in one
    assert BatchedDataDict[object]().size == 0


def test_joined_batches_are_padded_on_the_right() -> None:
    joined = BatchedDataDict[object].from_batches([batch(1, 2), batch(1, 3)], {"ids": 9})
    assert joined["ids"].tolist() == [[1, 2, 9], [1, 2, 3]]
    assert joined["lengths"].tolist() == [2, 3] and joined["names"] == ["r0", "r0"]
    assert BatchedDataDict[object].from_batches([batch(1, 2), batch(1, 3)])["ids"][0].tolist() == [1, 2, 0]


def test_batches_with_different_keys_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match="keys"):
        BatchedDataDict[object].from_batches([batch(1, 2), BatchedDataDict[object](ids=torch.ones(1, 2))])


def test_rows_can_be_sliced_selected_and_repeated() -> None:
    one = batch(3, 2)
    assert one.slice(1, 3)["names"] == ["r1", "r2"] and one.slice(1, 3)["ids"].tolist() == [[3, 4], [5, 6]]
    assert one.select_indices([2, 0])["ids"].tolist() == [[5, 6], [1, 2]]
    assert one.select_indices(torch.tensor([1]))["names"] == ["r1"]
    assert one.repeat_interleave(2)["names"] == ["r0", "r0", "r1", "r1", "r2", "r2"]
    assert type(one.slice(0, 1)) is BatchedDataDict


def test_tensors_move_to_a_device_and_lists_stay() -> None:
    moved = batch(1, 2).to("meta")
    assert moved["ids"].device.type == "meta" and moved["names"] == ["r0"]
