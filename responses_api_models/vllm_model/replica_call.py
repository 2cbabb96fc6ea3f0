"""One turn at one replica: builds the request for the engine, and a chat completion from its response.

There are three ways, one class each: without token information; with token information, where the engine
renders the messages; and with a prompt of token ids that is built here, so that history is never tokenised
again. Neither the request nor the engine's response is changed in place.
"""

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

import aiohttp

from nemo_gym.formats.conversion_error import RequestFormatError
from nemo_gym.formats.extra_body import LENGTH_FIELDS, laid_over, with_metadata_unpacked
from nemo_gym.formats.generated_text import parse_generated
from nemo_gym.formats.token_fields import newest_known_turn, without_tokens
from nemo_gym.formats.token_replay import replayed_prompt
from nemo_gym.formats.usage_conversion import filled_usage
from nemo_gym.openai_utils import NeMoGymAsyncOpenAI
from responses_api_models.vllm_model.token_ids import (
    LOG_PROBS_MODE_FIELD,
    RENDERED,
    TOKEN_REQUEST_FIELDS,
    CallTokens,
    TokenInformationError,
    UnsupportedRequestError,
    completion_request,
    difference,
    only_choice,
    reject_chat_only_features,
    tokens_of_chat,
    tokens_of_completion,
)
from responses_api_models.vllm_model.vllm_model_config import VLLMModelConfig

logger = logging.getLogger(__name__)

Chat = dict[str, Any]

_TOO_LONG = re.compile(
    r"maximum context length|model's context length|context length is only"
    r"|longer than the maximum model length|exceeds the available context size"
    r"|max_tokens must be at least 1, got -\d|context_length_exceeded|exceed_context_size_error"
)
_SEARCHED_CHARACTERS = 300
"""How much of an error message is searched: what follows may quote the request."""


@dataclass
class Notices:
    """The warnings of one server: each kind is counted every time and logged the first time."""

    server_name: str
    counts: Counter[str] = field(default_factory=Counter)

    def warn(self, kind: str, text: str, *arguments: object) -> None:
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            logger.warning("%s: " + text, self.server_name, *arguments)


class Turns(Protocol):
    """One of the ways to make a turn."""

    async def complete(self, endpoint: NeMoGymAsyncOpenAI, chat: Chat) -> Chat:
        """The chat completion for a chat request."""


def turns_for(config: VLLMModelConfig, notices: Notices) -> Turns:
    if not config.return_token_id_information:
        return PlainTurns()
    if config.token_id_replay == "messages":
        return TokenTurns(config.logprobs_mode, notices)
    eos = EosToken(config.eos_token_id, config.eos_token)
    return ReplayTurns(config.logprobs_mode, config.uses_reasoning_parser, eos, notices)


def prepared(chat: Chat, config: VLLMModelConfig) -> Chat:
    """A chat request with the configured fields, and with those that its metadata holds as JSON."""
    try:
        chat = with_metadata_unpacked(chat)
    except RequestFormatError as error:
        raise UnsupportedRequestError(str(error)) from error
    overrides = dict(config.sampling_overrides)
    lengths = [overrides.pop(name) for name in LENGTH_FIELDS if name in overrides]
    if lengths:
        overrides["max_completion_tokens"] = lengths[0]
    request = laid_over({"model": config.model, **overrides}, laid_over(chat, config.extra_body))
    template: Chat = {}
    for fields in (config.extra_body, vars(config), chat):
        template |= fields.get("chat_template_kwargs") or {}
    if template:
        request["chat_template_kwargs"] = template
    if not request.get("tools"):
        request.pop("tools", None)
        if request.get("tool_choice") in (None, "auto", "none"):  # vLLM rejects a choice without tools
            request.pop("tool_choice", None)
    if config.uses_reasoning_parser:
        request["messages"] = [_with_both_names(message) for message in request["messages"]]
    if config.return_token_id_information and request.get("n") not in (None, 1):
        raise UnsupportedRequestError(
            f"n={request['n']}: must be 1 with return_token_id_information; send the request n times"
        )
    return request


def _with_both_names(message: Chat) -> Chat:
    """Older engines read `reasoning_content`, newer ones `reasoning`."""
    reasoning = message.get("reasoning_content")
    return message if reasoning is None else {"reasoning": reasoning, **message}


class PlainTurns:
    """Without token information: the engine's own chat completions."""

    async def complete(self, endpoint: NeMoGymAsyncOpenAI, chat: Chat) -> Chat:
        messages = [without_tokens(message) for message in chat["messages"]]
        return await endpoint.create_chat_completion(**{**chat, "messages": messages})


@dataclass(frozen=True)
class TokenTurns:
    """With token information; the messages include the ids of the history, for servers that accept them."""

    log_probs_mode: str
    notices: Notices

    async def complete(self, endpoint: NeMoGymAsyncOpenAI, chat: Chat) -> Chat:
        top = chat.get("top_logprobs") or 0
        request = {**chat, **TOKEN_REQUEST_FIELDS, "logprobs": True, "top_logprobs": top}
        completion = await endpoint.create_chat_completion(**request)
        tokens = tokens_of_chat(completion)
        prompt = tokens.prompt
        if prompt is None:
            opened = chat.get("add_generation_prompt", True)
            prompt = (await tokenized(endpoint, chat, chat["messages"], add_generation_prompt=opened)).ids
        self._compare(chat["messages"], prompt)
        mode = only_choice(completion)["message"].get(LOG_PROBS_MODE_FIELD) or self.log_probs_mode
        return with_tokens(completion, chat, tokens, tokens.fields(prompt, mode))

    def _compare(self, messages: Sequence[Mapping[str, Any]], prompt: list[int]) -> None:
        """Warn if the engine tokenised the history again, to ids other than the sampled ones."""
        turn = newest_known_turn(messages)
        if turn is not None and prompt[: len(turn.seen)] != turn.seen:
            self.notices.warn(
                "retokenized",
                "the endpoint tokenised history again: its prompt and the ids of earlier turns differ (%s); "
                "such rollouts cannot be used for training; set token_id_replay: completions, or use a "
                "policy server that accepts the ids",
                difference(turn.seen, prompt),
            )


@dataclass(frozen=True)
class ReplayTurns:
    """With token information, over the Completions route: the prompt starts with the known ids."""

    log_probs_mode: str
    uses_reasoning_parser: bool
    eos: "EosToken"
    notices: Notices

    async def complete(self, endpoint: NeMoGymAsyncOpenAI, chat: Chat) -> Chat:
        reject_chat_only_features(chat)
        whole = await tokenized(endpoint, chat, chat["messages"])
        prompt = await self._prompt(endpoint, chat, whole.ids)
        request = completion_request(chat, prompt, whole.max_model_len)
        if request["max_tokens"] < 1:
            problem = f"its prompt has {len(prompt)} tokens, the context {whole.max_model_len}"
            return too_long_completion(chat["model"], problem, self.notices)
        completion = await endpoint.create_completion(**request)
        tokens = tokens_of_completion(completion, prompt)
        converted = converted_completion(completion, chat, self.uses_reasoning_parser)
        return with_tokens(converted, chat, tokens, tokens.fields(prompt, self.log_probs_mode))

    async def _prompt(self, endpoint: NeMoGymAsyncOpenAI, chat: Chat, whole: list[int]) -> list[int]:
        turn = newest_known_turn(chat["messages"])
        if turn is None:
            return whole
        messages = chat["messages"][: turn.position + 1]
        up_to_turn = await tokenized(endpoint, chat, messages, add_generation_prompt=False)
        eos_token_id = await self.eos.id_at(endpoint)
        try:
            return replayed_prompt(turn.seen, up_to_turn.ids, whole, eos_token_id)
        except AssertionError as error:
            raise TokenInformationError(f"{error} (end-of-sequence is {eos_token_id})") from error


@dataclass
class EosToken:
    """The token that ends a turn: its id, or its text, whose id is requested from the engine."""

    id: int | None
    text: str | None

    async def id_at(self, endpoint: NeMoGymAsyncOpenAI) -> int:
        if self.id is None:
            response = await endpoint.create_tokenize(prompt=self.text, add_special_tokens=False)
            ids = response.get("tokens") or []
            if len(ids) != 1:
                raise TokenInformationError(
                    f"eos_token {self.text!r} is {len(ids)} tokens instead of one; set eos_token_id"
                )
            self.id = int(ids[0])
        return self.id


@dataclass(frozen=True)
class Tokenized:
    ids: list[int]
    max_model_len: int | None


async def tokenized(
    endpoint: NeMoGymAsyncOpenAI,
    chat: Chat,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
) -> Tokenized:
    """The prompt that the engine renders from messages, as token ids."""
    request = {name: chat[name] for name in RENDERED if chat.get(name) is not None}
    if chat.get("reasoning_effort") is not None:  # /tokenize does not have this field, but templates use it
        effort = {"reasoning_effort": chat["reasoning_effort"]}
        request["chat_template_kwargs"] = {**effort, **request.get("chat_template_kwargs", {})}
    response = await endpoint.create_tokenize(
        model=chat["model"],
        messages=[without_tokens(message) for message in messages],
        add_generation_prompt=add_generation_prompt,
        **request,
    )
    ids = response.get("tokens")
    if not isinstance(ids, list) or not ids:  # servers that tokenise only text return an empty list
        raise TokenInformationError("the endpoint's /tokenize returns no tokens for messages")
    return Tokenized(ids, response.get("max_model_len"))


def converted_completion(completion: Chat, chat: Chat, uses_reasoning_parser: bool) -> Chat:
    """A completion as the chat completion that the chat route would have returned."""
    choice = only_choice(completion)
    offered = bool(chat.get("tools")) and chat.get("tool_choice") != "none"
    text = choice.get("text") or ""
    generated = parse_generated(text, tools_offered=offered)
    message: Chat = {"role": "assistant", "content": generated.text or None}
    if uses_reasoning_parser and generated.reasoning is not None:
        message["reasoning_content"] = generated.reasoning
    elif not uses_reasoning_parser:
        without_reasoning = parse_generated(text, tools_offered=False).text
        message["content"] = (text.removesuffix(without_reasoning) + generated.text) or None
    if generated.calls:
        message["tool_calls"] = generated.tool_calls()
    reason = choice.get("finish_reason")
    chat_choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if generated.calls and reason == "stop" else reason,
        "logprobs": _chat_logprobs(choice.get("logprobs")) if chat.get("logprobs") else None,
    }
    return {**completion, "object": "chat.completion", "choices": [chat_choice]}


def _chat_logprobs(logprobs: Mapping[str, Any] | None) -> Chat | None:
    if not logprobs:
        return None
    tokens, values = logprobs["tokens"], logprobs["token_logprobs"]
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    content = [
        {
            "token": token,
            "logprob": value,
            "bytes": None,
            "top_logprobs": [
                {"token": other, "logprob": likely, "bytes": None} for other, likely in (top or {}).items()
            ],
        }
        for token, value, top in zip(tokens, values, tops, strict=True)
    ]
    return {"content": content}


def with_tokens(completion: Chat, chat: Chat, tokens: CallTokens, fields: Chat) -> Chat:
    """A chat completion with token fields on its message, and `logprobs` only if the request has them."""
    choice = dict(only_choice(completion))
    choice["message"] = {**choice["message"], **fields}
    choice.pop("token_ids", None)
    if not chat.get("logprobs"):
        choice["logprobs"] = None
    changed = {key: value for key, value in completion.items() if key != "prompt_token_ids"}
    changed["choices"] = [choice]
    if not changed.get("usage"):
        changed["usage"] = _usage(len(fields["prompt_token_ids"]), len(tokens.generation))
    return changed


def with_usage(completion: Chat, notices: Notices) -> Chat:
    """The completion with token counts: zeros if the engine returns none."""
    if usage := completion.get("usage"):
        return {**completion, "usage": filled_usage(usage, "chat_completions")}
    notices.warn("usage", "the endpoint returns no usage; its token counts are recorded as zero")
    return {**completion, "usage": _usage(0, 0)}


def _usage(prompt: int, generated: int) -> Chat:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }


def too_long_message(error: aiohttp.ClientResponseError) -> str | None:
    """The engine's message if it rejected a request that does not fit into the context; else None."""
    if error.status != 400:
        return None
    try:
        body = json.loads(getattr(error, "response_content", b""))
    except ValueError:
        return None
    details = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(details, dict):
        details = {"message": details}
    message = str(details.get("message") or "")
    kinds = f"{details.get('type')} {details.get('code')}"
    return message if _TOO_LONG.search(message[:_SEARCHED_CHARACTERS]) or _TOO_LONG.search(kinds) else None


def too_long_completion(model: str, problem: str, notices: Notices) -> Chat:
    """The chat completion for a request that does not fit into the context: empty, ended by length."""
    notices.warn(
        "too_long",
        "a request does not fit into the context; its response is empty and incomplete: %s",
        problem,
    )
    message = {"role": "assistant", "content": ""}
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "length", "logprobs": None}],
        "usage": _usage(0, 0),
    }
