"""One generation: token ids in, sampled token ids and their log-probabilities out.

Invariant: a generation has as many log-probabilities as tokens. The engine leaves out those of tokens that
end in the middle of a character and those of the tokens of a stop string; these are requested afterwards, one
by one, with the same prompt.
"""

from dataclasses import dataclass
from typing import Any, Literal

from nemo_gym.http import EndpointError
from nemo_gym.local_engine.engine import EngineError, LocalEngine

LOG_PROBS_MODE = "raw_logprobs"
"""The engine computes them from the logits, before temperature, filters and grammar."""

_FEW = 512
"""A token is searched for among this many likeliest tokens first, then among all."""
_FORCED = 1000.0
"""A bias that exceeds every logit."""
_CHARACTER_BYTES = [0] * 12 + [2, 2, 3, 4]
"""The length of a multi-byte UTF-8 character, by the high four bits of its first byte."""


class PromptTooLongError(Exception):
    """A prompt that does not fit into the context."""


TokenInfo = dict[str, Any]
"""The engine's information about a token: `id`, `token` (its text), `bytes`, `logprob`, `top_logprobs`."""


@dataclass(frozen=True)
class Generation:
    """The output of one generation."""

    text: str
    """Without the stop string or end-of-sequence token that ended it."""
    token_ids: list[int]
    """Including the stop string or end-of-sequence token."""
    token_info: list[TokenInfo]
    """One per token; empty if no log-probabilities were requested."""
    ended_by: Literal["stop", "length"]
    cached_tokens: int
    """The number of prompt tokens that the engine had in its cache."""
    weight_version: int | None = None
    """The version of the weights that generated it, if they have one."""

    @property
    def log_probs(self) -> list[float]:
        return [info["logprob"] for info in self.token_info]


async def generate(
    engine: LocalEngine, prompt: list[int], sampling: dict[str, Any], *, top_log_probs: int | None = None
) -> Generation:
    """Continue a prompt; `sampling` holds the engine's own parameters.

    `top_log_probs` is the number of likeliest tokens to report with each sampled token; with None, no
    log-probabilities are reported at all.
    """
    room = engine.settings.context - len(prompt)  # the engine itself rounds the context up
    if room < 1:
        raise PromptTooLongError
    top = 0 if top_log_probs is None else max(1, top_log_probs)
    limit = min(room, sampling.get("n_predict", room))
    async with engine.slots, engine.same_weights():
        body = {**sampling, "prompt": prompt, "n_predict": limit, "return_tokens": True, "n_probs": top}
        try:
            completion = await engine.call("/completion", body)
        except EndpointError as error:
            if b"exceed_context_size_error" in error.response_content:
                raise PromptTooLongError from error
            raise
        tokens: list[int] = completion["tokens"]
        info = await _token_info(engine, prompt, completion, top) if top else []
        version = engine.settings.weight_version
    ended_by: Literal["stop", "length"] = "length" if completion["stop_type"] == "limit" else "stop"
    return Generation(
        completion["content"], tokens, info, ended_by, completion["timings"]["cache_n"], version
    )


async def accepts_grammar(engine: LocalEngine, grammar: str) -> bool:
    """Whether the engine can compile a grammar; the grammar must not allow a text that begins with "a".

    The engine silently ignores a grammar that it cannot compile. So "a" is forced: if it is sampled, the
    grammar was ignored.
    """
    letter = await _letter(engine)
    completion = await engine.call("/completion", _forcing(letter, [letter], 1) | {"grammar": grammar})
    return bool(completion["content"] != "a")


async def _token_info(
    engine: LocalEngine, prompt: list[int], completion: dict[str, Any], top: int
) -> list[TokenInfo]:
    tokens: list[int] = completion["tokens"]
    reported: list[TokenInfo] = completion.get("completion_probabilities") or []
    if [info["id"] for info in reported] == tokens:
        return reported
    await _learn_token_bytes(engine)
    # The engine reports all tokens that complete a character, except those of a stop string at the end.
    where = whole_character_ends(tokens, engine.token_bytes)[: len(reported)]
    if [tokens[position] for position in where] != [info["id"] for info in reported]:
        raise EngineError("", "the engine's log-probabilities do not match the tokens that it sampled")
    known = dict(zip(where, reported, strict=True))
    for position, token in enumerate(tokens):
        if position not in known:
            known[position] = await _missing_token_info(engine, prompt + tokens[:position], token, top)
    return [known[position] for position in range(len(tokens))]


def whole_character_ends(tokens: list[int], token_bytes: dict[int, bytes]) -> list[int]:
    """The positions of the tokens after which the text so far does not end within a character."""
    ends, tail = [], b""
    for position, token in enumerate(tokens):
        tail = (tail + token_bytes.get(token, b""))[-3:]
        if not _ends_within_character(tail):
            ends.append(position)
    return ends


def _ends_within_character(tail: bytes) -> bool:
    """Whether the last character in `tail`, the last three bytes of a text, is incomplete.

    As the engine decides it: only the first byte of a character is examined.
    """
    return any(_CHARACTER_BYTES[byte >> 4] > length for length, byte in enumerate(reversed(tail), 1))


async def _missing_token_info(engine: LocalEngine, prompt: list[int], token: int, top: int) -> TokenInfo:
    """The information that the engine left out for a token after a prompt."""
    for count in (_FEW, len(engine.token_bytes)):
        likeliest = await _likeliest(engine, prompt, count)
        for info in likeliest:
            if info["id"] == token:
                return {**info, "top_logprobs": likeliest[:top]}
    raise EngineError("", f"the engine reports no log-probability for token {token}")


async def _likeliest(engine: LocalEngine, prompt: list[int], count: int) -> list[TokenInfo]:
    """The likeliest tokens after a prompt, with their bytes.

    The engine reports them only with a token that completes a character, so a letter is forced.
    """
    completion = await engine.call("/completion", _forcing(await _letter(engine), prompt, count))
    likeliest: list[TokenInfo] = completion["completion_probabilities"][0]["top_logprobs"]
    return likeliest


def _forcing(letter: int, prompt: list[int], count: int) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "n_predict": 1,
        "n_probs": count,
        "temperature": 0,
        "logit_bias": [[letter, _FORCED]],
    }


async def _letter(engine: LocalEngine) -> int:
    """The token of the letter a."""
    tokens: list[int] = (await engine.call("/tokenize", {"content": "a", "add_special": False}))["tokens"]
    return tokens[-1]


async def _learn_token_bytes(engine: LocalEngine) -> None:
    """Request the bytes of all tokens, once and only when needed: few generations need them."""
    if not engine.token_bytes:
        everything = await _likeliest(engine, [await _letter(engine)], await engine.vocabulary_size())
        engine.token_bytes.update({info["id"]: bytes(info["bytes"]) for info in everything})
