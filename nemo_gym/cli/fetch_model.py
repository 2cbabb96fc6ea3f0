"""`ng_fetch_model`: download the weights of the local model into the cache."""

import sys
import time

from nemo_gym.cli.command import Command
from nemo_gym.cli.output import complain, say
from nemo_gym.config import GymConfig
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.local_engine.fetch import fetch_weights, is_complete
from nemo_gym.local_engine.find_weights import SMOLLM2, cached_weights, installed_weights

_MB = 1_000_000
_LINE_EVERY_S = 2.0


class FetchModelConfig(BaseNeMoGymCLIConfig):
    cache_dir: str | None = None
    """Folder for the weights. Give local_model the same folder with its setting `cache_dir`. Default:
    `nemo_gym` in the cache folder of the user."""
    force: bool = False
    """Download the weights even if an installed package contains them."""


def run(config: GymConfig, options: FetchModelConfig) -> int:
    installed = installed_weights(SMOLLM2)
    if installed is not None and installed.is_file() and not options.force:
        say(f"{SMOLLM2.name} is installed: {installed}; nothing to fetch")
        return 0
    cached = cached_weights(SMOLLM2, options.cache_dir)
    if is_complete(cached, SMOLLM2.sha256):
        say(f"{SMOLLM2.name} is already in the cache: {cached}")
        return 0
    say(f"Fetching {SMOLLM2.name} ({SMOLLM2.package}) …", flush=True)
    try:
        progress = DownloadBar() if sys.stderr.isatty() else DownloadLines()
        found = fetch_weights(SMOLLM2, options.cache_dir, progress)
    except KeyboardInterrupt:
        complain("\nStopped. Run the same command again to continue the download.")
        raise
    say(f"{SMOLLM2.name}: {found} ({found.stat().st_size / _MB:.0f} MB, checksum verified)")
    return 0


class DownloadLines:
    """Progress for a stream that is not a terminal: one line every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _LINE_EVERY_S

    def __call__(self, have: int, total: int | None) -> None:
        if time.monotonic() < self._next and have != total:
            return
        self._next = time.monotonic() + _LINE_EVERY_S
        share = f" of {total / _MB:.0f} MB ({100 * have / total:.0f} %)" if total else " MB"
        complain(f"  {have / _MB:.0f}{share}")


class DownloadBar:
    """Progress for a terminal."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self._bar = tqdm(unit="B", unit_scale=True, file=sys.stderr, dynamic_ncols=True)

    def __call__(self, have: int, total: int | None) -> None:
        self._bar.total = total
        self._bar.update(have - self._bar.n)
        if have == total:
            self._bar.close()


COMMAND = Command("fetch_model", FetchModelConfig, run, "ng_fetch_model", reads_files=False)
