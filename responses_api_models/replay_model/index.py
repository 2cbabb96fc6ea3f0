"""The index of a rollouts file: where the rollouts of each prompt are.

Invariant: the rollouts of one prompt have consecutive numbers, in the order of their `_ng_rollout_index`. A
rollout takes 32 bytes here; its line is read when needed.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config_types import ConfigError
from responses_api_models.replay_model.conversation_digests import (
    contents_of,
    decoded,
    items_of,
    prompt_digest,
    prompt_size,
)
from responses_api_models.replay_model.turns import call_seconds

_READ_BYTES = 1 << 18
_OTHER_FILE = "set rollouts_fpath to a file written by ng_collect_rollouts"
NO_SEED = (1 << 64) - 1
"""Stands for a missing seed."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file, with its rollout."""

    offset: int
    size: int
    place: str
    """File and line number, for messages."""
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Index:
    prompts: "array[int]"
    """The digest of each rollout's prompt, sorted."""
    offsets: "array[int]"
    sizes: "array[int]"
    seeds: "array[int]"
    """The seed of each rollout's requests, as a `seed_number`."""
    prompt_sizes: frozenset[int]
    """The sizes of the prompts, in items."""
    first_untimed: str | None
    """The place of the first rollout without the times of its call."""

    def __len__(self) -> int:
        return len(self.prompts)

    def rollouts_of(self, prompt: int) -> range:
        """The numbers of a prompt's rollouts."""
        first = bisect_left(self.prompts, prompt)
        return range(first, bisect_right(self.prompts, prompt, lo=first))

    def with_seed(self, group: range, seed: int) -> Iterator[int]:
        """The rollouts in `group` that have this seed, in order."""
        start = group.start
        while seed != NO_SEED:
            try:
                found = self.seeds.index(seed, start, group.stop)
            except ValueError:
                return
            yield found
            start = found + 1


def seed_number(seed: Any) -> int:
    """A seed in 64 bits; `NO_SEED` if it is not a whole number.

    Two seeds have the same number only if they differ by a multiple of 2**64 - 1, as 0 and 2**64 - 1 do. A
    seed beyond 64 bits is replaced by the nearest float, as JSON readers do.
    """
    if type(seed) is int and not -(1 << 63) <= seed < 1 << 64:
        with suppress(OverflowError):  # beyond the range of floats, JSON readers keep the exact number
            seed = float(seed)
    if type(seed) is float and seed.is_integer():
        seed = int(seed)
    return seed % NO_SEED if type(seed) is int else NO_SEED


def index_of(path: Path) -> Index:
    """Read the whole file once; a line that is not a rollout is an error."""
    prompts, offsets, sizes, seeds, repeats = (array("Q") for _ in range(5))
    prompt_sizes: set[int] = set()
    first_untimed = None
    for line in _lines(path):
        record = line.record
        params = record["responses_create_params"]
        prompt = contents_of(items_of(params))
        prompts.append(prompt_digest(prompt))
        prompt_sizes.add(prompt_size(prompt))
        offsets.append(line.offset)
        sizes.append(line.size)
        seeds.append(seed_number(params.get("seed")))
        repeats.append(_repeat(record))
        if first_untimed is None and call_seconds(record["response"]) is None:
            first_untimed = line.place
    if not prompts:
        raise ConfigError(f"{path}: contains no rollouts; {_OTHER_FILE}")
    # Two stable sorts: by repeat, then by prompt.
    order = sorted(range(len(prompts)), key=repeats.__getitem__)
    order.sort(key=prompts.__getitem__)
    return Index(
        array("Q", map(prompts.__getitem__, order)),
        array("Q", map(offsets.__getitem__, order)),
        array("Q", map(sizes.__getitem__, order)),
        array("Q", map(seeds.__getitem__, order)),
        frozenset(prompt_sizes),
        first_untimed,
    )


def _repeat(record: dict[str, Any]) -> int:
    repeat = record.get("_ng_rollout_index")
    return repeat if isinstance(repeat, int) and 0 <= repeat < 1 << 63 else 0


def _lines(path: Path) -> Iterator[Line]:
    offset = 0
    try:
        with path.open("rb", _READ_BYTES) as file:
            for number, data in enumerate(file, 1):
                if not data.isspace():
                    place = f"{path}:{number}"
                    yield Line(offset, len(data), place, _checked(data, place))
                offset += len(data)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; set rollouts_fpath to a readable file"
        ) from error


def _checked(data: bytes, place: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = decoded(data)  # may be anything until `_problem` has checked it
    except (ValueError, RecursionError) as error:
        if not data.endswith(b"\n"):
            raise ConfigError(
                f"{place}: the last line is incomplete; finish the recorded run with +resume_from_cache=true "
                "or remove the line"
            ) from error
        raise ConfigError(f"{place}: not JSON: {error}; repair or remove the line") from error
    problem = _problem(record)
    if problem:
        raise ConfigError(f"{place}: not a rollout: {problem}; {_OTHER_FILE}")
    return record


def _problem(record: Any) -> str | None:
    """Why a line cannot be replayed; None if it can."""
    if not isinstance(record, dict):
        return "it is not a JSON object"
    params, response = record.get("responses_create_params"), record.get("response")
    if not isinstance(params, dict) or not _is_conversation(params.get("input")):
        return "`responses_create_params.input` must be a string or a list of items"
    if not isinstance(response, dict) or not _is_items(response.get("output")):
        return "`response.output` must be a list of items"
    return None


def _is_conversation(value: Any) -> bool:
    return isinstance(value, str) or _is_items(value)


def _is_items(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get("type"), str | None) for item in value
    )
