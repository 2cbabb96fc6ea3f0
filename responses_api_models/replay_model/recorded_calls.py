"""Finds the recorded model call for a request.

Invariant: a conversation stays with one recorded rollout. All rollouts of a prompt are replayed once before
any is replayed again, unless a request fails for a reason other than an injected fault. Memory holds the
index and a bounded number of rollouts, not the file.
"""

import os
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from responses_api_models.replay_model.conversation_digests import (
    Item,
    Reading,
    contents_of,
    decoded,
    first_reading,
    items_of,
    readings,
)
from responses_api_models.replay_model.index import NO_SEED, Index, index_of, seed_number
from responses_api_models.replay_model.turns import Rollout, rollout_from

CACHE_BYTES = 32 << 20
"""Limit of cached rollouts, by the size of their lines in the file; in memory they take several times as
much."""
MAX_EXPECTED = 1 << 15
"""How many conversations are remembered by the digest of their next request; others are found by
comparison."""
MAX_ALIKE = 1 << 10
"""How many of these may have the same digest."""


class NotRecordedError(LookupError):
    """A request without a recorded call."""


@dataclass(frozen=True, slots=True)
class Match:
    """A request's place in the recording."""

    group: range
    """The rollouts of its prompt."""
    digest: int
    """The digest of the conversation so far."""
    number: int | None
    """Its rollout; None at the start of a conversation, which may use any of the group."""
    turn: int
    """The number of earlier model calls in the conversation."""
    seed: int = NO_SEED
    """Its seed, as a `seed_number`."""
    is_known: bool = True
    """False if its prompt or its generated items are not recorded."""


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded model call."""

    rollout: Rollout
    turn: int

    @property
    def is_recorded(self) -> bool:
        """False if the conversation is already longer than the recorded one."""
        return self.turn < len(self.rollout.turns)

    def response(self) -> dict[str, Any]:
        return self.rollout.response_of(self.turn) if self.is_recorded else self.rollout.final_response()


class Recording:
    """A rollouts file, replayed call by call."""

    def __init__(self, path: Path, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.path = path
        self.index: Index = index_of(path)
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        zeros = bytes(4 * len(self.index))
        self._begun = array("I", zeros)
        """How many conversations began, per prompt; indexed by the first rollout of the prompt."""
        self._first_requests = array("I", zeros)
        """How many first requests arrived, per prompt; indexed in the same way."""
        self._later_requests = array("I", zeros)
        """How many later requests arrived, per rollout."""
        self._expected: OrderedDict[int, list[int]] = OrderedDict()
        """The rollouts of conversations in progress, by the digest of their next request."""
        self._given_back: dict[int, list[int]] = {}
        """The rollouts whose conversation a fault ended, by the first rollout of their prompt."""
        self._cache: OrderedDict[int, Rollout] = OrderedDict()
        self._cached_bytes = 0
        self._cache_bytes = cache_bytes

    def find(self, params: Mapping[str, Any]) -> Match:
        """The place of a request in the recording; changes no state."""
        items, seed = items_of(params), seed_number(params.get("seed"))
        known: range | None = None
        for reading in readings(contents_of(items), self.index.prompt_sizes):
            group = self.index.rollouts_of(reading.prompt)
            if group and (match := self._match(group, reading, seed)) is not None:
                return match
            known = known or group
        raise NotRecordedError(self._unknown(items, known))

    def find_any(self, params: Mapping[str, Any]) -> Match:
        """As `find`, but a request that is not recorded gets a rollout too, always the same one."""
        try:
            return self.find(params)
        except NotRecordedError:
            reading = first_reading(contents_of(items_of(params)))
            group = self.index.rollouts_of(reading.prompt) or range(len(self.index))
            number = group[reading.prompt % len(group)]
            turns = len(self._rollout(number).turns)
            return Match(group, reading.digest, number, min(reading.runs, turns), is_known=False)

    def count_request(self, match: Match) -> int:
        """Count a request; returns how many times the same request was made before."""
        place = match.group.start if match.number is None else match.number
        counts = self._first_requests if match.number is None else self._later_requests
        counts[place] += 1
        return counts[place] - 1

    def take(self, match: Match) -> Call:
        """The recorded call; from now on the next request of the conversation is expected."""
        number = match.number
        if number is None:
            number = self._begin(match)
        else:
            self._leave(match, number)
        rollout = self._rollout(number)
        if match.is_known and match.turn + 1 < len(rollout.turns):
            self._expect(rollout.digests[match.turn + 1], number)
        return Call(rollout, match.turn)

    def give_back(self, match: Match) -> None:
        """After a fault: replay the rollout again later, unless the request is retried."""
        if match.is_known and match.number is not None:
            self._leave(match, match.number)
            self._given_back.setdefault(match.group.start, []).append(match.number)

    def _match(self, group: range, reading: Reading, seed: int) -> Match | None:
        """The rollout that begins like the conversation; if there are several, one with its seed."""
        if reading.runs == 0:
            return Match(group, reading.digest, None, 0, seed)
        for number in self._candidates(group, reading.digest, seed):
            turn = self._rollout(number).turn_at(reading.digest, reading.runs)
            if turn is not None:
                return Match(group, reading.digest, number if turn else None, turn, seed)
        return None

    def _candidates(self, group: range, digest: int, seed: int) -> Iterator[int]:
        """The rollouts that a conversation may belong to, the likeliest first: each comparison reads a
        line."""
        expected, waiting = self._expected.get(digest, ()), self._given_back.get(group.start, ())
        if seed != NO_SEED:
            yield from (n for n in chain(expected, waiting) if self.index.seeds[n] == seed)
            yield from self.index.with_seed(group, seed)
        yield from chain(expected, waiting, group)

    def _begin(self, match: Match) -> int:
        """The rollout with the seed, else the next one in turn. Rollouts that were given back come after all
        others: until then their last request may be retried."""
        group = match.group
        begun, waiting = self._begun[group.start], self._given_back.get(group.start, ())
        number = next(self.index.with_seed(group, match.seed), None)
        if number is None and waiting and begun % len(group) == 0:
            number = waiting[0]
        if number is not None:
            return self._popped(self._given_back, group.start, number) if number in waiting else number
        self._begun[group.start] += 1
        return group[begun % len(group)]

    def _leave(self, match: Match, number: int) -> None:
        """Forget that the rollout is expected, or that it was given back."""
        if number in self._expected.get(match.digest, ()):
            self._popped(self._expected, match.digest, number)
        elif number in self._given_back.get(match.group.start, ()):
            self._popped(self._given_back, match.group.start, number)

    @staticmethod
    def _popped(waiting: dict[int, list[int]], key: int, number: int) -> int:
        waiting[key].remove(number)
        if not waiting[key]:
            del waiting[key]
        return number

    def _expect(self, digest: int, number: int) -> None:
        alike = self._expected.setdefault(digest, [])
        alike.append(number)
        del alike[:-MAX_ALIKE]
        self._expected.move_to_end(digest)
        if len(self._expected) > MAX_EXPECTED:
            self._expected.popitem(last=False)

    def _rollout(self, number: int) -> Rollout:
        rollout = self._cache.get(number)
        if rollout is not None:
            self._cache.move_to_end(number)
            return rollout
        rollout = self._cache[number] = self._read(number)
        self._cached_bytes += self.index.sizes[number]
        while self._cached_bytes > self._cache_bytes and len(self._cache) > 1:
            dropped, _ = self._cache.popitem(last=False)
            self._cached_bytes -= self.index.sizes[dropped]
        return rollout

    def _read(self, number: int) -> Rollout:
        """Blocks. A line is nearly always in the page cache, where reading it is faster than using a
        thread."""
        size, offset = self.index.sizes[number], self.index.offsets[number]
        try:
            return rollout_from(decoded(os.pread(self._file, size, offset)))
        except (ValueError, KeyError, TypeError) as error:
            raise RuntimeError(
                f"{self.path}: the file changed during the replay; restart the server"
            ) from error

    def _unknown(self, items: Iterable[Item], group: range | None) -> str:
        texts = [str(item.get("content")) for item in items if item.get("role") == "user"]
        shown = repr(texts[-1][:200]) if texts else "without a user message"
        if not group:
            return (
                f"no rollout of {self.path} has the prompt {shown}; replay the recorded input with an agent "
                "that sends the same prompts, or set when_unknown: any"
            )
        return (
            f"none of the {len(group)} recorded rollouts of the prompt {shown} begins with the items that "
            "the model generated in this conversation; if the agent changes them, set when_unknown: any"
        )
