"""A stand-in for vLLM's server: its routes and payloads with a toy model.

Payloads follow vLLM's documentation: "OpenAI-Compatible Server" (docs.vllm.ai/en/latest/serving/
openai_compatible_server.html) for the routes, `/tokenize` and the extra parameters `return_token_ids` and
`return_tokens_as_token_ids`, and the fields that they add to a response.

It is an HTTP server on a free loopback port, in its own thread. The tokenizer encodes pairs of bytes, but the
model samples single bytes, so tokenizing a generation again gives other ids than those that were sampled.
Log-probabilities depend only on the ids.
"""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import orjson
from aiohttp import web

Body = dict[str, Any]
Style = Literal["ids", "strings", "policy", "silent"]
"""How token ids are returned: as by vLLM since 0.10.2; as by vLLM before; as by a trainer's policy server,
which puts them on the message and reuses those of the history; not at all."""

BEGIN, EOS = 1, 2
_SPECIAL = {"<|im_start|>": BEGIN, "<|im_end|>": EOS}
_SPECIAL_TEXT = {token: text for text, token in _SPECIAL.items()}
_BYTE, _PAIR = 10, 1000
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.S)


def tokenize(text: str) -> list[int]:
    """The ids of a text: special tokens, and pairs of bytes."""
    tokens: list[int] = []
    for piece in re.split(r"(<\|im_start\|>|<\|im_end\|>)", text):
        if piece in _SPECIAL:
            tokens.append(_SPECIAL[piece])
            continue
        data = piece.encode()
        tokens += [_PAIR + data[at] * 256 + data[at + 1] for at in range(0, len(data) - 1, 2)]
        tokens += [_BYTE + data[-1]] if len(data) % 2 else []
    return tokens


def sample(text: str) -> list[int]:
    """The ids of a text as the model samples it: byte by byte."""
    return [_BYTE + byte for byte in text.encode()]


def detokenize(tokens: Sequence[int]) -> str:
    data = b""
    for token in tokens:
        if token in _SPECIAL_TEXT:
            data += _SPECIAL_TEXT[token].encode()
        elif token >= _PAIR:
            data += bytes(divmod(token - _PAIR, 256))
        else:
            data += bytes([token - _BYTE])
    return data.decode(errors="replace")


def log_prob(token: int) -> float:
    return -(token % 7 + 1) / 8


def render(body: Body) -> str:
    """The chat template: ChatML with tools, calls, reasoning and `enable_thinking`."""
    text = ""
    if body.get("tools"):
        names = json.dumps([tool["function"]["name"] for tool in body["tools"]])
        text += f"<|im_start|>system\ntools: {names}<|im_end|>\n"
    for message in body["messages"]:
        text += f"<|im_start|>{message['role']}\n{_content(message)}<|im_end|>\n"
    if body.get("add_generation_prompt", True):
        text += "<|im_start|>assistant\n"
        if (body.get("chat_template_kwargs") or {}).get("enable_thinking") is False:
            text += "<think>\n\n</think>\n\n"
    return text


def _content(message: Body) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    thought = f"<think>{reasoning}</think>" if reasoning else ""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    written = [f'{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}' for call in calls]
    return thought + content + "".join(f"<tool_call>{call}</tool_call>" for call in written)


@dataclass
class ReceivedRequest:
    """A received request."""

    path: str
    body: Body
    headers: dict[str, str]


def error(message: str, status: int = 400, *, nested: bool = True) -> web.Response:
    """vLLM's error body; before 0.11 it was not nested."""
    content = {"message": message, "type": "BadRequestError", "param": None, "code": status}
    body = {"error": content} if nested else {"object": "error", **content}
    return web.json_response(body, status=status)


class VLLMStandIn:
    """`with VLLMStandIn(write) as vllm:` serves at `vllm.base_url`; `write` returns the text for a prompt."""

    def __init__(
        self,
        write: Callable[[str], str] = lambda prompt: "hi",
        *,
        style: Style = "ids",
        reasoning_field: str | None = None,
        max_model_len: int = 4096,
        intercept: Callable[[str, Body], web.Response | None] = lambda path, body: None,
        alter: Callable[[Body], None] = lambda completion: None,
    ) -> None:
        """`reasoning_field` is where the reasoning parser puts the reasoning; None switches the parser off.
        `intercept` may return a response instead of the server's; `alter` may change a response."""
        self.requests: list[ReceivedRequest] = []
        self.base_url = ""
        self._write = write
        self._style = style
        self._reasoning_field = reasoning_field
        self._max_model_len = max_model_len
        self._intercept = intercept
        self._alter = alter
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "VLLMStandIn":
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def bodies(self, path: str = "/v1/chat/completions") -> list[Body]:
        return [request.body for request in self.requests if request.path == path]

    def go_down(self) -> None:
        """Close every connection and refuse new ones."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._stop())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/chat/completions", self._handler(self._chat))
        app.router.add_post("/v1/completions", self._handler(self._complete))
        app.router.add_post("/tokenize", self._handler(self._tokenize))
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _handler(self, route: Callable[[Body], web.Response]) -> Callable[[web.Request], Any]:
        async def respond(request: web.Request) -> web.Response:
            body = orjson.loads(await request.read())
            self.requests.append(ReceivedRequest(request.path, body, dict(request.headers)))
            return self._intercept(request.path, body) or route(body)

        return respond

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": "toy", "object": "model", "owned_by": "vllm", "max_model_len": self._max_model_len}
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    def _tokenize(self, body: Body) -> web.Response:
        text = body["prompt"] if "prompt" in body else render(body)
        tokens = tokenize(text)
        return web.json_response(
            {"count": len(tokens), "max_model_len": self._max_model_len, "tokens": tokens, "token_strs": None}
        )

    def _prompt(self, body: Body) -> list[int]:
        """The messages as ids; a policy server reuses the ids of the history."""
        known = [
            at
            for at, message in enumerate(body["messages"])
            if message.get("generation_token_ids") is not None
        ]
        if self._style != "policy" or not known:
            return tokenize(render(body))
        message = body["messages"][known[-1]]
        seen = [*message["prompt_token_ids"], *message["generation_token_ids"]]
        rest = {**body, "tools": None, "messages": body["messages"][known[-1] + 1 :]}
        return [*seen, *tokenize("\n" + render(rest))]

    def _generate(self, prompt: list[int], limit: int | None) -> tuple[list[int], str]:
        """The ids of a generation and its finish reason."""
        tokens = [*sample(self._write(detokenize(prompt))), EOS]
        room = self._max_model_len - len(prompt)
        most = min(room, limit if limit is not None else room)
        return (tokens, "stop") if len(tokens) <= most else (tokens[:most], "length")

    def _too_long(self, prompt: list[int], max_tokens: int | None) -> web.Response | None:
        total = len(prompt) + (max_tokens or 1)
        if total <= self._max_model_len:
            return None
        return error(
            f"This model's maximum context length is {self._max_model_len} tokens. However, you requested "
            f"{total} tokens ({len(prompt)} in the messages, {max_tokens or 1} in the completion). "
            "Please reduce the length of the messages or completion."
        )

    def _chat(self, body: Body) -> web.Response:
        prompt = self._prompt(body)
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        refusal = self._too_long(prompt, limit)
        if refusal is not None:
            return refusal
        generation, reason = self._generate(prompt, limit)
        message = self._message(detokenize(generation).removesuffix("<|im_end|>"), body)
        choice: Body = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": "tool_calls" if message["tool_calls"] and reason == "stop" else reason,
            "stop_reason": None,
            "token_ids": None,
        }
        completion = self._completion("chat.completion", prompt, generation, choice)
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [self._logged(token, body) for token in generation]}
        if self._style == "ids" and body.get("return_token_ids"):
            completion["prompt_token_ids"], choice["token_ids"] = prompt, generation
        if self._style == "policy":
            message |= {
                "prompt_token_ids": prompt,
                "generation_token_ids": generation,
                "generation_log_probs": [log_prob(token) for token in generation],
            }
        self._alter(completion)
        return web.json_response(completion)

    def _complete(self, body: Body) -> web.Response:
        prompt = body["prompt"] if isinstance(body["prompt"], list) else tokenize(body["prompt"])
        limit = body.get("max_tokens", 16)  # vLLM's own default on this route
        refusal = self._too_long(prompt, limit)
        if refusal is not None:
            return refusal
        generation, reason = self._generate(prompt, limit)
        choice: Body = {
            "index": 0,
            "text": detokenize(generation).removesuffix("<|im_end|>"),
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": None,
            "token_ids": None,
            "prompt_token_ids": None,
        }
        completion = self._completion("text_completion", prompt, generation, choice)
        if body.get("logprobs") is not None:
            choice["logprobs"] = {
                "text_offset": list(range(len(generation))),
                "token_logprobs": [log_prob(token) for token in generation],
                "tokens": [self._shown(token, body) for token in generation],
                "top_logprobs": [{self._shown(token, body): log_prob(token)} for token in generation],
            }
        if self._style == "ids" and body.get("return_token_ids"):
            choice["prompt_token_ids"], choice["token_ids"] = prompt, generation
        self._alter(completion)
        return web.json_response(completion)

    def _message(self, text: str, body: Body) -> Body:
        message: Body = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
        if self._reasoning_field is not None and "</think>" in text:
            thought, _, message["content"] = text.removeprefix("<think>").partition("</think>")
            message[self._reasoning_field] = thought
        if body.get("tools"):
            calls = [json.loads(call) for call in _CALL.findall(message["content"])]
            message["content"] = _CALL.sub("", message["content"]) or None
            message["tool_calls"] = [
                {
                    "id": f"chatcmpl-tool-{at}",
                    "type": "function",
                    "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
                }
                for at, call in enumerate(calls)
            ]
        return message

    def _logged(self, token: int, body: Body) -> Body:
        shown = self._shown(token, body)
        top = [{"token": shown, "logprob": log_prob(token), "bytes": None}] * body.get("top_logprobs", 0)
        return {"token": shown, "logprob": log_prob(token), "bytes": None, "top_logprobs": top}

    def _shown(self, token: int, body: Body) -> str:
        as_id = self._style != "silent" and body.get("return_tokens_as_token_ids")
        return f"token_id:{token}" if as_id else detokenize([token])

    def _completion(self, kind: str, prompt: list[int], generation: list[int], choice: Body) -> Body:
        return {
            "id": f"cmpl-{len(self.requests)}",
            "object": kind,
            "created": 1700000000,
            "model": "toy",
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": {
                "prompt_tokens": len(prompt),
                "total_tokens": len(prompt) + len(generation),
                "completion_tokens": len(generation),
                "prompt_tokens_details": None,
            },
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "kv_transfer_params": None,
        }
