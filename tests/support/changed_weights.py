"""Weights of the same shape as the default ones, with other output."""

from pathlib import Path
from shutil import copyfile

from nemo_gym.local_engine import find_weights
from nemo_gym.local_engine.gguf_file import read_gguf_file


def write_changed_weights(file: Path) -> Path:
    """Write the default weights with the values of the last norm reversed; the output is noise."""
    copyfile(find_weights(), file)
    (place,) = [place for place in read_gguf_file(file).tensors if place.name == "output_norm.weight"]
    size = 4 * place.shape[0]
    with file.open("r+b") as opened:
        opened.seek(place.offset)
        numbers = memoryview(opened.read(size)).cast("f")
        opened.seek(place.offset)
        opened.write(numbers[::-1].tobytes())
    return file
