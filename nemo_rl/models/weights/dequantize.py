"""The tensors of a GGUF file as float32, each in memory of its own.

The kinds that the model in the box has are decoded here, in a tenth of the time that the package gguf takes;
it decodes all others. With numpy: torch's threads spin when something else wants the cores.
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
"""ggml's numbers for how weights are written."""


def tensor_reader(file: GgufFile) -> Callable[[TensorPlace], Weights]:
    """Reads a file's tensors."""
    data: Bytes = np.memmap(file.path, dtype=np.uint8, mode="r")

    def read(place: TensorPlace) -> Weights:
        end = place.offset + _bytes(file, place)
        if end > data.size:
            raise ConfigError(f"{file.path}: ends within the tensor {place.name}; fetch the file again")
        return _decoded(data[place.offset : end], place).reshape(place.shape)

    return read


def _bytes(file: GgufFile, place: TensorPlace) -> int:
    try:
        weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(place.kind)]
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{file.path}: {place.name} is of ggml's kind {place.kind}, which the package gguf cannot decode"
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
    """32 weights in 20 bytes: scale, least, and four bits each, those of the second half above the others."""
    scale, least = blocks[:, :4].copy().view(np.float16).astype(np.float32).T[:, :, np.newaxis]
    bits, weights = blocks[:, 4:], np.empty((len(blocks), 32), np.float32)
    weights[:, :16], weights[:, 16:] = bits & 15, bits >> 4
    weights *= scale
    weights += least
    return weights


def _q8_0(blocks: Bytes) -> Weights:
    """32 weights in 34 bytes: their scale, and a byte each."""
    weights = blocks[:, 2:].view(np.int8).astype(np.float32)
    weights *= blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return weights
