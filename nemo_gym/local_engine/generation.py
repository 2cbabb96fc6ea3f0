"""One generation: ids in, ids and their log-probabilities out, exactly as they were sampled.

The engine tells no log-probability of a token that ends in the middle of a character, nor of those of a stop
string. They are asked for afterwards, one by one, with the same prompt: the log-probabilities of a
generation are always as many as its tokens.
"""

from dataclasses import dataclass
from typing import Any, Literal

from nemo_gym.http import EndpointError
from nemo_gym.local_engine.engine import EngineError, LocalEngine

LOG_PROBS_MODE = "raw_logprobs"
"""The engine takes them from the logits, before temperature, filters and grammar."""

_FEW = 512
"""Likeliest tokens among which one is looked for before all of them are."""
_FORCED = 1000.0
"""A bias that no logit outweighs."""
_CHARACTER_BYTES = [0] * 12 + [2, 2, 3, 4]
"""By the high half of its first byte: how long a character of UTF-8 is, where it has more than one byte."""


class PromptTooLongError(Exception):
    """A prompt that the context has no room for."""


Told = dict[str, Any]
"""What the engine tells of a token: `id`, `token` (its text), `bytes`, `logprob`, `top_logprobs`."""


@dataclass(frozen=True)
class Generation:
    """What the model wrote."""

    text: str
    """Without the stop string or the end-of-sequence token that ended it."""
    token_ids: list[int]
    """With them."""
    told: list[Told]
    """Of each token; empty where no log-probabilities were asked for."""
    ended_by: Literal["stop", "length"]
    cached_tokens: int
    """Of the prompt, those that the engine had computed before."""
    weight_version: int | None = None
    """Of the weights that wrote it, where they have one."""

    @property
    def log_probs(self) -> list[float]:
        return [one["logprob"] for one in self.told]


async def generate(
    engine: LocalEngine, prompt: list[int], sampling: dict[str, Any], *, top_log_probs: int | None = None
) -> Generation:
    """Continue a prompt; `sampling` holds the engine's own parameters.

    `top_log_probs`: so many likeliest tokens are told beside each one sampled; None: nothing is told.
    """
    room = engine.settings.context - len(prompt)  # the engine itself rounds the context up
    if room < 1:
        raise PromptTooLongError
    asked = 0 if top_log_probs is None else max(1, top_log_probs)
    most = min(room, sampling.get("n_predict", room))
    async with engine.slots, engine.same_weights():
        body = {**sampling, "prompt": prompt, "n_predict": most, "return_tokens": True, "n_probs": asked}
        try:
            answer = await engine.ask("/completion", body)
        except EndpointError as error:
            if b"exceed_context_size_error" in error.response_content:
                raise PromptTooLongError from error
            raise
        tokens: list[int] = answer["tokens"]
        told = await _told(engine, prompt, answer, asked) if asked else []
        version = engine.settings.weight_version
    ended_by: Literal["stop", "length"] = "length" if answer["stop_type"] == "limit" else "stop"
    return Generation(answer["content"], tokens, told, ended_by, answer["timings"]["cache_n"], version)


async def takes_grammar(engine: LocalEngine, grammar: str) -> bool:
    """Whether the engine can hold a generation to a grammar that does not begin with the letter a.

    One that it cannot compile it drops without a word; then a letter that is made likely is what it samples.
    """
    letter = await _letter(engine)
    answer = await engine.ask("/completion", _forcing(letter, [letter], 1) | {"grammar": grammar})
    return bool(answer["content"] != "a")


async def _told(engine: LocalEngine, prompt: list[int], answer: dict[str, Any], asked: int) -> list[Told]:
    tokens: list[int] = answer["tokens"]
    told: list[Told] = answer.get("completion_probabilities") or []
    if [one["id"] for one in told] == tokens:
        return told
    await _learn_token_bytes(engine)
    # Of tokens that complete a character, the engine tells all but those of a stop string, the last.
    where = whole_character_ends(tokens, engine.token_bytes)[: len(told)]
    if [tokens[position] for position in where] != [one["id"] for one in told]:
        raise EngineError("", "the engine's log-probabilities are not those of the tokens that it sampled")
    known = dict(zip(where, told, strict=True))
    for position, token in enumerate(tokens):
        if position not in known:
            known[position] = await _told_later(engine, prompt + tokens[:position], token, asked)
    return [known[position] for position in range(len(tokens))]


def whole_character_ends(tokens: list[int], token_bytes: dict[int, bytes]) -> list[int]:
    """The positions after which the text of the tokens so far does not end within a character."""
    ends, tail = [], b""
    for position, token in enumerate(tokens):
        tail = (tail + token_bytes.get(token, b""))[-3:]
        if not _is_cut(tail):
            ends.append(position)
    return ends


def _is_cut(tail: bytes) -> bool:
    """Whether the last three bytes of a text are too few for a character that begins in them.

    As the engine sees it: what follows the first byte of a character is not looked at.
    """
    for length, byte in enumerate(reversed(tail), 1):
        wanted = _CHARACTER_BYTES[byte >> 4]
        if wanted > length:
            return True
    return False


async def _told_later(engine: LocalEngine, prompt: list[int], token: int, asked: int) -> Told:
    """What the engine would have told of a token after a prompt."""
    for most in (_FEW, len(engine.token_bytes)):
        likeliest = await _likeliest(engine, prompt, most)
        for one in likeliest:
            if one["id"] == token:
                return {**one, "top_logprobs": likeliest[:asked]}
    raise EngineError("", f"the engine tells no log-probability of token {token}")


async def _likeliest(engine: LocalEngine, prompt: list[int], most: int) -> list[Told]:
    """The likeliest tokens after a prompt, with their bytes.

    They are told with a token that completes a character: a letter is made the only one that can be sampled.
    """
    answer = await engine.ask("/completion", _forcing(await _letter(engine), prompt, most))
    likeliest: list[Told] = answer["completion_probabilities"][0]["top_logprobs"]
    return likeliest


def _forcing(letter: int, prompt: list[int], most: int) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "n_predict": 1,
        "n_probs": most,
        "temperature": 0,
        "logit_bias": [[letter, _FORCED]],
    }


async def _letter(engine: LocalEngine) -> int:
    """The token of the letter a."""
    tokens: list[int] = (await engine.ask("/tokenize", {"content": "a", "add_special": False}))["tokens"]
    return tokens[-1]


async def _learn_token_bytes(engine: LocalEngine) -> None:
    """The bytes of all tokens, asked for once: few generations need them."""
    if not engine.token_bytes:
        everything = await _likeliest(engine, [await _letter(engine)], await engine.vocabulary_size())
        engine.token_bytes.update({one["id"]: bytes(one["bytes"]) for one in everything})
