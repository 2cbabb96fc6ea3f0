"""Export of a policy's weights to a GGUF file that llama.cpp serves with the same tokens.

Matrices are written as F16 and vectors as F32, which changes log-probabilities by about 0.002. Everything
else is copied byte for byte from the file that the policy was loaded from.

Invariant: the output is complete or does not exist. Each export is a new file: an engine that has an older
one of the same name open continues to read that one.
"""

from __future__ import annotations

import os
import struct
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from nemo_gym.errors import ConfigError
from nemo_gym.local_engine.gguf_file import GgufFile, TensorPlace, read_gguf_file
from nemo_rl.models.weights.dequantize import F16, F32
from nemo_rl.models.weights.llama import to_gguf, torch_name

if TYPE_CHECKING:
    from nemo_rl.models.weights.dequantize import Weights
    from nemo_rl.models.weights.gguf_policy import Policy

_FILE_TYPE = b"general.file_type" + struct.pack("<I", 4)
_MOSTLY_F16 = struct.pack("<I", 1)
_LARGEST_F16 = 65504.0


def export_gguf(policy: Policy, output: Path) -> None:
    """Write the policy's weights to a file."""
    file = read_gguf_file(policy.source)
    weights = _weights(policy, file)
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f"{output.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as opened:
            opened.write(_head(file))
            for place in file.tensors:
                _write(opened, file, place, to_gguf(place.name, weights[place.name], policy.model.config))
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def _weights(policy: Policy, file: GgufFile) -> dict[str, Weights]:
    """The policy's weights by their names in the file; both must have the same tensors."""
    own = {name: weight.detach().float().cpu().numpy() for name, weight in policy.model.named_parameters()}
    places = {torch_name(file, place.name): place for place in file.tensors}
    if unmatched := own.keys() ^ places.keys():
        raise ConfigError(
            f"the policy cannot be exported: {min(unmatched)} is not in both the model and {file.path}, "
            "which it was loaded from; merge adapters into the model first"
        )
    for name, place in places.items():
        if own[name].shape != place.shape:
            raise ConfigError(
                f"the policy cannot be exported: {name} has the shape {own[name].shape} in the model and "
                f"{place.shape} in {file.path}, which it was loaded from"
            )
    return {place.name: own[name] for name, place in places.items()}


def _head(file: GgufFile) -> bytes:
    """Everything before the data of the tensors."""
    places, offset = [], 0
    for place in file.tensors:
        shape = place.shape[::-1]
        name, kind = place.name.encode(), _kind(place)
        places.append(
            struct.pack(f"<Q{len(name)}sI{len(shape)}QIQ", len(name), name, len(shape), *shape, kind, offset)
        )
        offset += _aligned(_size(place), file.alignment)
    begin, found, rest = file.entries.partition(_FILE_TYPE)
    entries = begin + found + _MOSTLY_F16 + rest[4:] if found else file.entries
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(file.tensors), file.entry_count) + entries + b"".join(places)
    return head.ljust(_aligned(len(head), file.alignment), b"\0")


def _write(opened: BinaryIO, file: GgufFile, place: TensorPlace, weight: Weights) -> None:
    if not (weight.min() >= -_LARGEST_F16 and weight.max() <= _LARGEST_F16):  # also rejects NaN
        raise ValueError(
            f"the policy cannot be exported: {place.name} has values that are NaN or too large for F16"
        )
    written = np.ascontiguousarray(weight, np.float32 if _kind(place) == F32 else np.float16)
    opened.write(written.data)
    size = _size(place)
    opened.write(bytes(_aligned(size, file.alignment) - size))


def _kind(place: TensorPlace) -> int:
    """The type to write; llama.cpp requires vectors as F32."""
    return F32 if len(place.shape) == 1 else F16


def _size(place: TensorPlace) -> int:
    return prod(place.shape) * (4 if _kind(place) == F32 else 2)


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
