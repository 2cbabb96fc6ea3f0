"""Failure responses: an exception in a server becomes a status, a body and three headers with its cause.

The headers name the server that failed first, its status and the kind of the failure (`nemo_gym.failures`).
Each server on the way up passes them on.
"""

import inspect
import logging
import os
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi.exceptions import ResponseValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.activity import in_collection
from nemo_gym.codec import encode_json
from nemo_gym.config import redact
from nemo_gym.event_loop import end_forked_process, is_ctrl_c
from nemo_gym.failures import Boundary, FailureKind, kind_of_exception, kind_of_status, rule_of
from nemo_gym.http import (
    FAILURE_COUNT_HEADER,
    FAILURE_KIND_HEADER,
    FAILURE_SERVER_HEADER,
    FAILURE_STATUS_HEADER,
    EndpointError,
    ResponseTooLargeError,
    ServerCallError,
    ServerUnreachableError,
)
from nemo_gym.servers.asgi import SESSION_HEADERS_KEY, adding_headers
from nemo_gym.servers.missing_files import missing_file_note
from nemo_gym.servers.sessions import SessionEndedError

logger = logging.getLogger(__name__)

Failed = Exception | SystemExit | KeyboardInterrupt
"""What the code of an environment may raise. The last two are included: they must not end the process."""
FAILED = (Exception, SystemExit, KeyboardInterrupt)


@dataclass(frozen=True)
class Failures:
    """The failure responses of one server. They name the server and contain none of its secrets."""

    server_name: str
    secrets: frozenset[str] = frozenset()
    folder: Path | None = None
    """The folder of its component."""

    async def respond_to(self, error: Failed, request: Request) -> Response:
        """The response to a request whose route raised: from the application's own handler, if any."""
        if is_ctrl_c(error):
            raise error
        if isinstance(error, SessionEndedError):
            cause = _cause(self.server_name, 410, kind_of_exception(error, Boundary.SERVER_CODE))
            return Response(encode_json({"detail": str(error)}), 410, cause, "application/json")
        handler = _handler_for(request.app, error)
        if handler is None:
            return self._failure(error)
        try:
            if inspect.iscoroutinefunction(handler):
                response: Response = await handler(request, error)
            else:
                response = await run_in_threadpool(handler, request, error)
        except FAILED as second:  # the boundary to an environment's own code
            return self._failure(second)
        self.add_cause(response.headers, response.status_code)
        return response

    def add_cause(self, headers: MutableHeaders, status: int) -> None:
        """Add the cause to an error response whose status a route chose itself."""
        if status >= 400 and FAILURE_KIND_HEADER not in headers:
            headers.update(_cause(self.server_name, status, kind_of_status(status, Boundary.SERVER_CODE)))

    def log(self, error: Failed) -> None:
        """Log an error that was first raised here, with its traceback."""
        text = "".join(traceback.format_exception(error))
        redacted = redact(text, self.secrets)
        if redacted == text:
            logger.error("%s: %r", self.server_name, error, exc_info=error)
        else:
            logger.error("%s: %s", self.server_name, redacted)

    def _failure(self, error: Failed) -> Response:
        kind = kind_of_exception(error, Boundary.SERVER_CODE)
        if isinstance(error, EndpointError):
            cause = _cause(self.server_name, error.origin_status, kind, error.failure_count)
            body = redact(error.response_content.decode("utf-8", "surrogateescape"), self.secrets)
            content = body.encode("utf-8", "surrogateescape")
            return Response(content, error.status, cause, "application/json")
        if isinstance(error, ServerCallError):
            cause = _cause(error.server or self.server_name, error.origin_status, kind, error.failure_count)
            # The server that refused the request did not log it. A collection reports an endpoint that did.
            if error.status < 500 and not (rule_of(kind).blames_endpoint and in_collection()):
                logger.warning("%s: %s", self.server_name, redact(str(error), self.secrets))
        elif isinstance(error, ServerUnreachableError):
            cause = _cause(error.server or self.server_name, 503, kind, error.failure_count)
        elif isinstance(error, ResponseTooLargeError):
            logger.warning("%s: %s", self.server_name, redact(str(error), self.secrets))
            cause = _cause(self.server_name, 502, kind)
        else:  # first raised here: the one place that logs it
            if note := missing_file_note(error, self.folder):
                error.add_note(note)
            self.log(error)
            cause = _cause(self.server_name, 500, kind, getattr(error, "failure_count", 1))
        text = redact(_described(error), self.secrets)
        return Response(encode_json(text), 500, cause, "application/json")


def _handler_for(app: Any, error: Failed) -> Any:
    handlers = app.exception_handlers
    if isinstance(error, HTTPException) and error.status_code in handlers:
        return handlers[error.status_code]
    return next((handlers[cls] for cls in type(error).__mro__ if cls in handlers), None)


def _described(error: Failed) -> str:
    """The exception's `repr` with its notes; for a validation error, with the errors that it leaves out."""
    if isinstance(error, ResponseValidationError):
        found = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:10]]
        return f"ResponseValidationError({'; '.join(found)})"
    return "; ".join([repr(error), *getattr(error, "__notes__", ())])


def _cause(server: str, status: int, kind: FailureKind, count: int = 1) -> dict[str, str]:
    return {
        **({FAILURE_COUNT_HEADER: str(count)} if count != 1 else {}),
        FAILURE_KIND_HEADER: kind.value,
        FAILURE_SERVER_HEADER: server.encode("ascii", "backslashreplace").decode(),
        FAILURE_STATUS_HEADER: str(status),
    }


class FailureMiddleware:
    """Gives requests that go through the ASGI application the same failure responses."""

    def __init__(self, app: ASGIApp, failures: Failures) -> None:
        self.app = app
        self.failures = failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, owner = False, os.getpid()

        async def send_with_cause(message: Message) -> None:
            nonlocal started
            end_forked_process(owner)
            if message["type"] == "http.response.start":
                started = True
                self.failures.add_cause(MutableHeaders(scope=message), message["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_with_cause)
        except FAILED as error:  # the boundary of a server: every failure gets a response
            end_forked_process(owner)
            if scope["type"] != "http":
                raise
            if started:  # too late for another response: a background task failed, or a stream broke off
                self.failures.log(error)
                return
            response = await self.failures.respond_to(error, Request(scope, receive))
            if SESSION_HEADERS_KEY in scope:
                send = adding_headers(send, scope[SESSION_HEADERS_KEY])
            await response(scope, receive, send)
