"""Weights like those of the box that say other things."""

from pathlib import Path
from shutil import copyfile

from nemo_gym.local_engine import find_weights
from nemo_gym.local_engine.gguf_file import read_gguf_file


def write_changed_weights(file: Path) -> Path:
    """The model in the box with its last norm turned back to front: as fluent as a die."""
    copyfile(find_weights(), file)
    (place,) = [place for place in read_gguf_file(file).tensors if place.name == "output_norm.weight"]
    size = 4 * place.shape[0]
    with file.open("r+b") as opened:
        opened.seek(place.offset)
        numbers = memoryview(opened.read(size)).cast("f")
        opened.seek(place.offset)
        opened.write(numbers[::-1].tobytes())
    return file
