"""An OpenAI-compatible endpoint with scripted responses, for the tests and the benchmarks.

It is an HTTP server on a free loopback port, in its own thread.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from types import TracebackType
from typing import Any

import orjson
from aiohttp import web

from nemo_gym.codec import decode_json, encode_json

Item = dict[str, Any]
Output = list[Item] | web.Response
"""The output items of a response, or a complete HTTP response."""
Script = Callable[[dict[str, Any]], Output | Awaitable[Output]]
"""Takes the body of a Responses request; a coroutine function may be slow, or never return."""


def message(text: str) -> Item:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": "msg_0", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def function_call(name: str, call_id: str = "call_0", **arguments: Any) -> Item:
    text = orjson.dumps(arguments).decode()
    return {"id": "fc_0", "type": "function_call", "call_id": call_id, "name": name, "arguments": text}


def tool_outputs(request: dict[str, Any]) -> list[str]:
    """The outputs of tools in the conversation so far."""
    return [item["output"] for item in request["input"] if item.get("type") == "function_call_output"]


def user_text(request: dict[str, Any]) -> str:
    """The last message of the user."""
    texts = [item["content"] for item in request["input"] if item.get("role") == "user"]
    return str(texts[-1])


class ScriptedEndpoint:
    """`with ScriptedEndpoint(script) as endpoint:` serves at `endpoint.base_url`."""

    def __init__(self, script: Script) -> None:
        self.requests: list[dict[str, Any]] = []
        """The received bodies."""
        self.headers: list[dict[str, str]] = []
        self.base_url = ""
        self._script = script
        self._numbers = count()
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "ScriptedEndpoint":
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def settings(self) -> dict[str, str]:
        """The settings that select this endpoint."""
        return {"policy_base_url": self.base_url, "policy_api_key": "no-key", "policy_model_name": "scripted"}

    def go_down(self) -> None:
        """Close every connection and refuse new ones."""
        self._run(self._stop())

    def come_back(self) -> None:
        """Serve again, at the same address."""
        self._run(self._start())

    def _run(self, step: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self.base_url = f"http://127.0.0.1:{self._port}/v1"
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._stop())
        hanging = asyncio.all_tasks(self._loop)
        for task in hanging:  # scripts may never return
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*hanging, return_exceptions=True))
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/responses", self._respond)
        app.router.add_post("/v1/chat/completions", self._respond)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=2048).start()
        self._port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _respond(self, request: web.Request) -> web.Response:
        body = decode_json(await request.read())
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        given = self._script(body)
        output = await given if inspect.isawaitable(given) else given
        if isinstance(output, web.Response):
            return output
        response = {
            "id": f"resp_{next(self._numbers)}",
            "object": "response",
            "created_at": 0,
            "model": body["model"],
            "status": "completed",
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": body.get("tools", []),
            "usage": {
                "input_tokens": 10,
                "output_tokens": 5,
                "total_tokens": 15,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }
        return web.Response(body=encode_json(response), content_type="application/json")
