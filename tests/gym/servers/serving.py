"""Host the application of a test as a server, in this process or over HTTP."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from nemo_gym.client import ServerClient, session_cookie_name
from nemo_gym.http import ClientResponse
from nemo_gym.servers.activity_report import Activities
from nemo_gym.servers.hosted import HostedServer
from nemo_gym.servers.serve import Startup, uvicorn_config
from nemo_gym.servers.session_middleware import add_sessions
from nemo_gym.servers.sessions import SessionPolicy, SessionStore


def new_app(name: str = "it", policy: SessionPolicy | None = None, **options: Any) -> FastAPI:
    """An empty application with sessions, as the base classes set it up."""
    app = FastAPI(**options)
    add_sessions(app, SessionStore(session_cookie_name(name), policy=policy))
    return app


def local_client(**servers: HostedServer) -> ServerClient:
    return ServerClient(local_servers=servers)


def post(app: FastAPI, path: str, **options: Any) -> ClientResponse:
    """Call an application that is hosted in this process."""
    return asyncio.run(local_client(it=HostedServer("it", app)).post("it", path, **options))


@contextmanager
def served(server: HostedServer) -> Iterator[str]:
    """Serve over HTTP on a free port, in a thread; yields the base URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ready = threading.Event()
        app = Startup(Activities(server), ready.set)
        runner = uvicorn.Server(uvicorn_config(app, "127.0.0.1", port))
        thread = threading.Thread(target=runner.run, args=([listener],))
        thread.start()
        try:
            assert ready.wait(60)
            yield f"http://127.0.0.1:{port}"
        finally:
            runner.should_exit = True
            thread.join(60)


def served_config(name: str, url: str, **block: Any) -> dict[str, Any]:
    """The configuration of a server that listens at `url`."""
    host, _, port = url.removeprefix("http://").partition(":")
    return {name: {"resources_servers": {name: {"host": host, "port": int(port), **block}}}}


def over_both(app_factory: Callable[[], FastAPI]) -> Iterator[ServerClient]:
    """Clients of the application, named `it`: first in this process, then over HTTP."""
    yield local_client(it=HostedServer("it", app_factory()))
    with served(HostedServer("it", app_factory())) as url:
        yield ServerClient(global_config_dict=served_config("it", url))
