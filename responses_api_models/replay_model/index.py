"""The index of a rollouts file: where the rollouts of each prompt stand.

Invariant: the rollouts of one prompt have numbers in a row, in the order of their `_ng_rollout_index`. A
rollout takes 32 bytes here; its line is read when it is wanted.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config_types import ConfigError
from responses_api_models.replay_model.conversations import (
    decoded,
    heard,
    items_of,
    prompt_digest,
    prompt_size,
)
from responses_api_models.replay_model.turns import call_seconds

_READ_BYTES = 1 << 18
NO_SEED = (1 << 64) - 1
"""In the place of a seed where there is none."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file that holds a rollout."""

    offset: int
    size: int
    place: str
    """File and number, for people."""
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Index:
    prompts: "array[int]"
    """Digest of each rollout's prompt, sorted."""
    offsets: "array[int]"
    sizes: "array[int]"
    seeds: "array[int]"
    """What the requests of each rollout were seeded with, as `seed_number` gives it."""
    prompt_sizes: frozenset[int]
    """How many items the prompts have."""
    first_untimed: str | None
    """The first line that does not say how long its call took."""

    def __len__(self) -> int:
        return len(self.prompts)

    def rollouts_of(self, prompt: int) -> range:
        """The numbers of a prompt's rollouts."""
        first = bisect_left(self.prompts, prompt)
        return range(first, bisect_right(self.prompts, prompt, lo=first))

    def with_seed(self, group: range, seed: int) -> Iterator[int]:
        """Those of a prompt's rollouts that had the seed, in their order."""
        start = group.start
        while seed != NO_SEED:
            try:
                found = self.seeds.index(seed, start, group.stop)
            except ValueError:
                return
            yield found
            start = found + 1


def seed_number(seed: Any) -> int:
    """A seed in 64 bits; `NO_SEED` for what is no whole number.

    Two seeds share a number only if they are a multiple of 2**64 - 1 apart, as 0 and 2**64 - 1 are. Beyond 64
    bits a seed stands for the float nearest to it, which is all that JSON readers make of it.
    """
    if type(seed) is int and not -(1 << 63) <= seed < 1 << 64:
        with suppress(OverflowError):  # beyond the range of a float readers keep all of it
            seed = float(seed)
    if type(seed) is float and seed.is_integer():
        seed = int(seed)
    return seed % NO_SEED if type(seed) is int else NO_SEED


def index_of(path: Path) -> Index:
    """Read the whole file once; a line that is no rollout is an error."""
    prompts, offsets, sizes, seeds, repeats = (array("Q") for _ in range(5))
    prompt_sizes: set[int] = set()
    first_untimed = None
    for line in _lines(path):
        record = line.record
        params = record["responses_create_params"]
        said = heard(items_of(params))
        prompts.append(prompt_digest(said))
        prompt_sizes.add(prompt_size(said))
        offsets.append(line.offset)
        sizes.append(line.size)
        seeds.append(seed_number(params.get("seed")))
        repeats.append(_repeat(record))
        if first_untimed is None and call_seconds(record["response"]) is None:
            first_untimed = line.place
    if not prompts:
        raise ConfigError(f"{path}: holds no rollouts; name a file that ng_collect_rollouts wrote")
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
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; make it a readable file") from error


def _checked(data: bytes, place: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = decoded(data)  # or anything else, until `_problem` has seen it
    except (ValueError, RecursionError) as error:
        if not data.endswith(b"\n"):
            raise ConfigError(
                f"{place}: the last line is torn; finish the recorded run with +resume_from_cache=true, "
                "or remove the line"
            ) from error
        raise ConfigError(f"{place}: not JSON: {error}; repair or remove the line") from error
    problem = _problem(record)
    if problem:
        raise ConfigError(f"{place}: no rollout: {problem}; name a file that ng_collect_rollouts wrote")
    return record


def _problem(record: Any) -> str | None:
    """What a line lacks to be replayed."""
    if not isinstance(record, dict):
        return "it is not a JSON object"
    params, response = record.get("responses_create_params"), record.get("response")
    if not isinstance(params, dict) or not _is_conversation(params.get("input")):
        return "`responses_create_params.input` must be a text or a list of items"
    if not isinstance(response, dict) or not _is_items(response.get("output")):
        return "`response.output` must be a list of items"
    return None


def _is_conversation(value: Any) -> bool:
    return isinstance(value, str) or _is_items(value)


def _is_items(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get("type"), str | None) for item in value
    )
