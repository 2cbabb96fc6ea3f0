"""One server in a process of its own. Started by `nemo_gym.launch.fleet`, never by hand.

The parent sends the configuration to standard input and keeps that pipe open. When the pipe closes, the
parent has ended, and this process ends too. It writes one line to the status pipe: ready, or an error.
"""

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.client import ServerClient
from nemo_gym.codec import encode_json
from nemo_gym.config import GymConfig, config_from_bytes
from nemo_gym.config.current import set_global_config_dict
from nemo_gym.errors import NeMoGymError
from nemo_gym.http.transport_choice import apply_client_settings
from nemo_gym.launch.components import find_component
from nemo_gym.launch.embedded import build_hosted
from nemo_gym.log_output import log_counts, start_logging
from nemo_gym.servers.serve import GRACE_S, serve
from nemo_gym.servers.server_base import component_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instance", required=True)
    parser.add_argument("--worker", type=int)
    parser.add_argument("--listener-fd", type=int, required=True)
    parser.add_argument("--status-fd", type=int, required=True)
    options = parser.parse_args()
    logs = start_logging(logging.INFO, with_names=True)
    for descriptor in (options.listener_fd, options.status_fd):
        os.set_inheritable(descriptor, False)  # child processes of the environment must not keep the port
    config = config_from_bytes(sys.stdin.buffer.readline())
    logs.hide(config.secrets)
    parent = _Parent(_take_standard_input())
    threading.Thread(target=parent.watch, daemon=True).start()
    set_global_config_dict(config.values)
    apply_client_settings(config.data)
    listener = socket.socket(fileno=options.listener_fd)
    try:
        client = ServerClient(config.head_server, config.values)
        started_in = _enter_component_folder(config, options.instance)
        hosted = build_hosted(config, options.instance, client, worker=options.worker, working_dir=started_in)
    except NeMoGymError as error:
        _report(options.status_fd, {"error": str(error)})
        sys.exit(error.exit_code)
    hosted.app.add_middleware(_StartUpErrors, status_fd=options.status_fd)
    # uvicorn replaces this handler, and raises the signal again after it has stopped.
    signal.signal(signal.SIGTERM, parent.end)
    parent.can_stop_server.set()
    serve(
        hosted,
        config.server(options.instance),
        config,
        listener=listener,
        on_ready=lambda: _report(options.status_fd, {"ready": True}),
    )


def _enter_component_folder(config: GymConfig, name: str) -> Path:
    """Make the component's folder the working directory; returns the one before."""
    before, instance = Path.cwd(), config.server(name)
    os.chdir(component_folder(instance, find_component(instance, config.roots)))
    return before


def _take_standard_input() -> int:
    """The pipe to the parent, moved away from standard input, so that child processes do not inherit it."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lifeline


class _StartUpErrors:
    """Middleware: sends an error of the server's start-up to the parent, instead of uvicorn's traceback."""

    def __init__(self, app: ASGIApp, status_fd: int) -> None:
        self._app = app
        self._status_fd = status_fd

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        failed: list[Message] = []

        async def send_unless_failed(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                failed.append(message)
            else:
                await send(message)

        try:
            await self._app(scope, receive, send_unless_failed)
        except NeMoGymError as error:
            if failed:
                _report(self._status_fd, {"error": str(error)})
                os._exit(error.exit_code)
            raise
        finally:
            for message in failed:
                await send(message)


def _report(status_fd: int, message: dict[str, object]) -> None:
    os.write(status_fd, encode_json(message) + b"\n")


class _Parent:
    """The parent process. When it ends, this process and all its children end too."""

    def __init__(self, lifeline: int) -> None:
        self._lifeline = lifeline
        self.can_stop_server = threading.Event()
        """Set when there is a server that a signal stops in good order."""
        self._gone = threading.Event()

    def watch(self) -> None:
        while os.read(self._lifeline, 4096):
            pass
        self._gone.set()
        if self.can_stop_server.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(GRACE_S + 2)
        os.killpg(0, signal.SIGKILL)

    def end(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM after the server has stopped."""
        log_counts()
        if self._gone.is_set():
            os.killpg(0, signal.SIGKILL)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


if __name__ == "__main__":
    main()
