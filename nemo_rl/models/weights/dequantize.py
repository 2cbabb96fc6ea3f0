"""The tensors of a GGUF file as float32 arrays, each a copy.

The tensor types of the included model are decoded here, ten times as fast as by the package gguf, which
decodes all others. numpy is used because torch's threads busy-wait when other processes need the cores.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nemo_gym.errors import ConfigError
from nemo_rl.lazy import lazy

if TYPE_CHECKING:
    import gguf

    from nemo_gym.local_engine.gguf_file import GgufFile, TensorPlace
else:
    gguf = lazy("gguf")

Bytes = npt.NDArray[np.uint8]
Weights = npt.NDArray[np.float32]

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
"""ggml's numbers of tensor types."""


def tensor_reader(file: GgufFile) -> Callable[[TensorPlace], Weights]:
    """A function that reads tensors of this file."""
    data: Bytes = np.memmap(file.path, dtype=np.uint8, mode="r")

    def read(place: TensorPlace) -> Weights:
        end = place.offset + _bytes(file, place)
        if end > data.size:
            raise ConfigError(f"{file.path}: the file ends within tensor {place.name}; fetch it again")
        return _decoded(data[place.offset : end], place).reshape(place.shape)

    return read


def _bytes(file: GgufFile, place: TensorPlace) -> int:
    try:
        weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(place.kind)]
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{file.path}: tensor {place.name} has ggml type {place.kind}, which is not supported"
        ) from error
    return prod(place.shape) // weights * size


def _decoded(data: Bytes, place: TensorPlace) -> Weights:
    if place.kind == F32:
        return data.view(np.float32).copy()
    if place.kind == F16:
        return data.view(np.float16).astype(np.float32)
    if place.kind == Q4_1:
        return _q4_1(data.reshape(-1, 20))
    if place.kind == Q8_0:
        return _q8_0(data.reshape(-1, 34))
    rows = data.reshape(*place.shape[:-1], -1)
    decoded: Weights = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(place.kind))
    return decoded


def _q4_1(blocks: Bytes) -> Weights:
    """32 weights in 20 bytes: scale, minimum, and 4 bits per weight; the high bits hold the second half."""
    scale, minimum = blocks[:, :4].copy().view(np.float16).astype(np.float32).T[:, :, np.newaxis]
    bits, weights = blocks[:, 4:], np.empty((len(blocks), 32), np.float32)
    weights[:, :16], weights[:, 16:] = bits & 15, bits >> 4
    weights *= scale
    weights += minimum
    return weights


def _q8_0(blocks: Bytes) -> Weights:
    """32 weights in 34 bytes: scale, and one byte per weight."""
    weights = blocks[:, 2:].view(np.int8).astype(np.float32)
    weights *= blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return weights
