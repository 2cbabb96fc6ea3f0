"""Which recorded model call answers a request.

Invariant: a conversation stays with one recorded rollout, and as long as nobody but this server fails a
request, the rollouts of a prompt are all played once before any is played again. Memory holds the index and
a bounded number of rollouts, not the file.
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

from responses_api_models.replay_model.conversations import (
    Item,
    Reading,
    decoded,
    first_reading,
    heard,
    items_of,
    readings,
)
from responses_api_models.replay_model.index import NO_SEED, Index, index_of, seed_number
from responses_api_models.replay_model.turns import Rollout, rollout_from

CACHE_BYTES = 32 << 20
"""Lines whose rollouts are kept, by their size in the file; in memory they take several times as much."""
MOST_EXPECTED = 1 << 15
"""Conversations whose next request is waited for; one that comes later is found by comparing."""
MOST_ALIKE = 1 << 10
"""Of them, those that are the same word for word."""


class NotRecordedError(LookupError):
    """A request that no recorded call answers."""


@dataclass(frozen=True, slots=True)
class Match:
    """A request's place in the recording."""

    group: range
    """The rollouts of its prompt."""
    key: int
    """Of the conversation so far."""
    number: int | None
    """The rollout it belongs to; None: it begins, so it may have any of the group."""
    turn: int
    """Model calls that it has behind it."""
    seed: int = NO_SEED
    """As the index keeps seeds."""
    is_known: bool = True
    """False: its prompt, or what the model said, is not recorded."""


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded model call."""

    rollout: Rollout
    turn: int

    @property
    def is_recorded(self) -> bool:
        """False where the conversation went on for longer than the recorded one."""
        return self.turn < len(self.rollout.turns)

    def answer(self) -> dict[str, Any]:
        return self.rollout.answer(self.turn) if self.is_recorded else self.rollout.out_of_room()


class Recording:
    """A rollouts file, served call by call."""

    def __init__(self, path: Path, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.path = path
        self.index: Index = index_of(path)
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        zeros = bytes(4 * len(self.index))
        self._begun = array("I", zeros)
        """At the first rollout of each prompt: how many conversations began."""
        self._asked_first = array("I", zeros)
        """There too: how many first calls were asked for."""
        self._asked = array("I", zeros)
        """How many later calls of each rollout were asked for."""
        self._expected: OrderedDict[int, list[int]] = OrderedDict()
        """By the key of their next request: the rollouts of conversations that go on."""
        self._given_back: dict[int, list[int]] = {}
        """By the first rollout of their prompt: those whose conversation a fault ended."""
        self._cache: OrderedDict[int, Rollout] = OrderedDict()
        self._cached_bytes = 0
        self._cache_bytes = cache_bytes

    def find(self, params: Mapping[str, Any]) -> Match:
        """Where a request belongs; changes nothing."""
        items, seed = items_of(params), seed_number(params.get("seed"))
        known: range | None = None
        for reading in readings(heard(items), self.index.prompt_sizes):
            group = self.index.rollouts_of(reading.prompt)
            if group and (match := self._match(group, reading, seed)) is not None:
                return match
            known = known or group
        raise NotRecordedError(self._unknown(items, known))

    def find_any(self, params: Mapping[str, Any]) -> Match:
        """The same, but a request that is not recorded gets a rollout too, always the same one."""
        try:
            return self.find(params)
        except NotRecordedError:
            reading = first_reading(heard(items_of(params)))
            group = self.index.rollouts_of(reading.prompt) or range(len(self.index))
            number = group[reading.prompt % len(group)]
            turns = len(self._rollout(number).turns)
            return Match(group, reading.key, number, min(reading.runs, turns), is_known=False)

    def ask(self, match: Match) -> int:
        """Count a request; gives how often the same was asked before."""
        place = match.group.start if match.number is None else match.number
        counts = self._asked_first if match.number is None else self._asked
        counts[place] += 1
        return counts[place] - 1

    def take(self, match: Match) -> Call:
        """The call that answers; the conversation's next request is expected from here on."""
        number = match.number
        if number is None:
            number = self._begin(match)
        else:
            self._leave(match, number)
        rollout = self._rollout(number)
        if match.is_known and match.turn + 1 < len(rollout.turns):
            self._expect(rollout.keys[match.turn + 1], number)
        return Call(rollout, match.turn)

    def give_back(self, match: Match) -> None:
        """The request fails: its rollout is to be played again, unless the request is sent again."""
        if match.is_known and match.number is not None:
            self._leave(match, match.number)
            self._given_back.setdefault(match.group.start, []).append(match.number)

    def _match(self, group: range, reading: Reading, seed: int) -> Match | None:
        """The rollout that begins as the conversation does; of several, one that had the seed."""
        if reading.runs == 0:
            return Match(group, reading.key, None, 0, seed)
        for number in self._candidates(group, reading.key, seed):
            turn = self._rollout(number).turn_at(reading.key, reading.runs)
            if turn is not None:
                return Match(group, reading.key, number if turn else None, turn, seed)
        return None

    def _candidates(self, group: range, key: int, seed: int) -> Iterator[int]:
        """The rollouts that a conversation may belong to, the likeliest first: each that is tried is read."""
        expected, waiting = self._expected.get(key, ()), self._given_back.get(group.start, ())
        if seed != NO_SEED:
            yield from (n for n in chain(expected, waiting) if self.index.seeds[n] == seed)
            yield from self.index.with_seed(group, seed)
        yield from chain(expected, waiting, group)

    def _begin(self, match: Match) -> int:
        """The rollout that had the seed, else all in turn, then those that were given back: until then their
        last request may be sent again."""
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
        """It is no longer expected, nor waiting to be played again."""
        if number in self._expected.get(match.key, ()):
            self._popped(self._expected, match.key, number)
        elif number in self._given_back.get(match.group.start, ()):
            self._popped(self._given_back, match.group.start, number)

    @staticmethod
    def _popped(waiting: dict[int, list[int]], key: int, number: int) -> int:
        waiting[key].remove(number)
        if not waiting[key]:
            del waiting[key]
        return number

    def _expect(self, key: int, number: int) -> None:
        alike = self._expected.setdefault(key, [])
        alike.append(number)
        del alike[:-MOST_ALIKE]
        self._expected.move_to_end(key)
        if len(self._expected) > MOST_EXPECTED:
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
        """Blocks: a line is nearly always in the page cache, and then faster read than a thread is asked."""
        size, offset = self.index.sizes[number], self.index.offsets[number]
        try:
            return rollout_from(decoded(os.pread(self._file, size, offset)))
        except (ValueError, KeyError, TypeError) as error:
            raise RuntimeError(f"{self.path}: was changed while it is replayed; start again") from error

    def _unknown(self, items: Iterable[Item], group: range | None) -> str:
        texts = [str(item.get("content")) for item in items if item.get("role") == "user"]
        shown = repr(texts[-1][:200]) if texts else "without a user message"
        if not group:
            return (
                f"no rollout of {self.path} has the prompt {shown}; replay the input that was recorded with "
                "an agent that sends the same prompts, or set when_unknown: any"
            )
        return (
            f"none of the {len(group)} recorded rollouts of the prompt {shown} begins with what the model "
            "said in this conversation; an agent that rewrites it needs when_unknown: any"
        )
