"""`verify_in: process`: processes that host an environment once more, each for one `verify` at a time.

Bodies and responses cross as bytes, so nothing has to be picklable. Such a process has no sessions and calls
no other server. It ends when its standard input is closed, or when the caller of its `verify` has gone.
"""

import asyncio
import inspect
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any, NamedTuple

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from nemo_gym.client import ServerClient
from nemo_gym.config import GymConfig, dump_config
from nemo_gym.errors import ConfigError, NeMoGymError
from nemo_gym.failures import FailureKind
from nemo_gym.http import Call, ClientResponse, parse_call
from nemo_gym.servers.hosted import HostedServer

_LENGTH_BYTES = 8
_START = "from nemo_gym.launch.verify_process_main import main; main()"


class VerifierDiedError(NeMoGymError):
    """A process that ran `verify` has ended."""

    kind = FailureKind.INFRASTRUCTURE


class NoServers(ServerClient):
    """The client in a process that only verifies."""

    async def get(self, server_name: str, url_path: str, **options: Any) -> ClientResponse:
        raise _cannot_call(server_name)

    async def post(self, server_name: str, url_path: str, **options: Any) -> ClientResponse:
        raise _cannot_call(server_name)

    async def request(self, server_name: str, url_path: str, method: str, **options: Any) -> ClientResponse:
        raise _cannot_call(server_name)


def _cannot_call(server_name: str) -> ConfigError:
    return ConfigError(f"verify_in: process: `verify` cannot call {server_name}; use verify_in: thread")


class Verified(NamedTuple):
    """A response to `/verify`."""

    status: int
    headers: dict[str, str]
    body: bytes


class VerifyProcesses:
    """The processes of one environment, started when they are first needed."""

    def __init__(self, config: GymConfig, name: str, processes: int) -> None:
        self._config = config
        self._name = name
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix=f"verify {name}")
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._is_closed = False

    async def verify(self, request: Request) -> Response:
        call = _OneCall(await request.body())
        try:
            loop = asyncio.get_running_loop()
            verified = await loop.run_in_executor(self._threads, self._run, call)
        except asyncio.CancelledError:
            call.cancel()
            raise
        return Response(verified.body, verified.status, verified.headers)

    def close(self) -> None:
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in list(self._all):
            process.kill()  # the thread of one that verifies ends it
        while self._idle:
            self._idle.pop().end()

    def _run(self, call: "_OneCall") -> Verified:
        process = self._idle.pop() if self._idle else _Process(self._config, self._name)
        self._all.add(process)
        call.process = process
        try:
            if call.is_cancelled or self._is_closed:
                raise EOFError
            verified = process.ask(call.body)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self._all.discard(process)
            process.end()
            raise VerifierDiedError(
                f"a process that ran `verify` of {self._name} ended before it responded"
            ) from error
        if self._is_closed:
            process.end()
        else:
            self._idle.append(process)
        return verified


class _OneCall:
    """One call of `verify`. If its caller goes, the process is killed: its computation would go on."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.process: _Process | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.process is not None:
            self.process.kill()


class _Process:
    """One process, used by one thread at a time."""

    def __init__(self, config: GymConfig, name: str) -> None:
        replies, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, str(theirs)], stdin=subprocess.PIPE, pass_fds=[theirs]
            )
        except BaseException:
            os.close(replies)
            raise
        finally:
            os.close(theirs)
        self._replies = os.fdopen(replies, "rb")
        assert self._process.stdin is not None
        self._requests: IO[bytes] = self._process.stdin
        write_frame(self._requests, name.encode())
        write_frame(self._requests, dump_config(config))

    def ask(self, body: bytes) -> Verified:
        write_frame(self._requests, body)
        return Verified(*pickle.loads(read_frame(self._replies)))

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self.kill()
        self._process.wait()
        self._replies.close()
        with suppress(BrokenPipeError):  # what it had not read
            self._requests.close()


def write_frame(file: IO[bytes], data: bytes) -> None:
    file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    file.flush()


def read_frame(file: IO[bytes]) -> bytes:
    """The next frame; raises EOFError if the other side is gone."""
    length = file.read(_LENGTH_BYTES)
    data = file.read(int.from_bytes(length, "big"))
    if len(length) < _LENGTH_BYTES or len(data) < int.from_bytes(length, "big"):
        raise EOFError
    return data


def check_verify(name: str, verify: Callable[..., Any]) -> None:
    """Refuse a `verify` that needs what only the process of the server has."""
    for parameter in inspect.signature(verify, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, HTTPConnection | Response):
            raise ConfigError(
                f"{name}: verify_in: process: `verify` takes a {kind.__name__}, which stays in the process "
                "of the server, like its session; use verify_in: thread"
            )


async def answer_requests(hosted: HostedServer, requests: IO[bytes], replies: IO[bytes]) -> None:
    """In such a process: respond to one request after the other."""
    loop, waiting = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def read() -> None:
        try:
            while True:
                loop.call_soon_threadsafe(waiting.put_nowait, read_frame(requests))
        except EOFError:  # the server is gone, or does not need this process any more
            os._exit(0)

    async with hosted.lifespan():
        threading.Thread(target=read, daemon=True).start()
        while True:
            call = _verify_call(await waiting.get())
            response = await hosted.send(call)
            headers = {
                name: value for name, value in response.raw_headers if name.lower() not in _OWN_HEADERS
            }
            verified = Verified(response.status, headers, await response.read())
            write_frame(replies, pickle.dumps(tuple(verified)))


_OWN_HEADERS = ("set-cookie", "content-length")


def _verify_call(body: bytes) -> Call:
    return parse_call("POST", "/verify", data=body, headers={"content-type": "application/json"})
