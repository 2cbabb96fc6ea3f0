"""From lines of an input file to materialized inputs: prompt, agent, overrides, indices, repeats, seed.

Pure and streaming: memory holds one small entry per different line.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from nemo_gym.codec import encode_json
from nemo_gym.errors import InputError
from nemo_gym.journal import json_object
from nemo_gym.prompt import PromptConfig, apply_prompt_to_row
from nemo_gym.records import Key
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.types import (
    AGENT_REF_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

DEFAULT_REPEATS_KEY = "_default"
_MOST_NAMED = 10
"""Longer lists of rows are written as ranges."""
_MOST_RANGES = 200
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Row = dict[str, Any]


class InputLine(NamedTuple):
    number: int
    """From 1."""
    data: bytes


class PlanLine(NamedTuple):
    """One rollout of the plan, as it is written."""

    key: Key
    agent: str
    line: bytes
    """The materialized input."""


@dataclass
class Plan:
    """Materialized inputs of one input file, in order. The counts are valid after the iteration."""

    config: RolloutCollectionConfig
    source: str
    """The input file, for messages."""
    prompt: PromptConfig | None = None
    agents: Sequence[str] = ()
    """Names of agents to choose from, for messages."""
    num_rows: int = 0
    rollouts_by_agent: Counter[str] = field(default_factory=Counter)
    _tasks: dict[bytes, int] = field(default_factory=dict)
    """Task index by digest of the line."""
    _rollouts: "array[int]" = field(default_factory=lambda: array("q"))
    """Rollouts so far of each task."""
    _given_rollouts: dict[int, int] = field(default_factory=dict)
    """The same if the rows contain task indices, which may have gaps."""
    _own_index: bool | None = None
    """Whether the rows contain task indices."""
    _without_agent: list[int] = field(default_factory=list)
    _with_input: list[int] = field(default_factory=list)
    _without_repeats: set[str] = field(default_factory=set)

    def materialize(self, lines: Iterable[InputLine]) -> Iterator[PlanLine]:
        """The plan of these lines; errors that concern several rows are raised at the end."""
        for number, data in lines:
            if number == 1:
                data = data.removeprefix(_BYTE_ORDER_MARK)
            if not data or data.isspace():
                continue
            if self.num_rows == self.config.limit:
                break
            row = self._parsed(number, data)
            index = self.num_rows
            self.num_rows += 1
            agent = self._prepare(row, index, number)
            if agent is not None:
                yield from self._repeat(row, agent, self._task_index(row, data, number))
        self._check()

    def _parsed(self, number: int, data: bytes) -> Row:
        row = json_object(data, f"{self.source}:{number}")
        params = row.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
        if not isinstance(params, dict) and (self.prompt is None or params is not None):
            fix = f'give it "{RESPONSES_CREATE_PARAMS_KEY_NAME}": {{"input": …}}'
            raise self._bad(number, f"the line has no {RESPONSES_CREATE_PARAMS_KEY_NAME} object; {fix}")
        return row

    def _prepare(self, row: Row, index: int, number: int) -> str | None:
        """Put prompt, agent and overrides into the row; returns the agent, or None if there is none."""
        if self.prompt is not None:
            if (row.get(RESPONSES_CREATE_PARAMS_KEY_NAME) or {}).get("input") is not None:
                self._with_input.append(index)
                return None
            try:
                row[RESPONSES_CREATE_PARAMS_KEY_NAME] = apply_prompt_to_row(row, self.prompt)[
                    RESPONSES_CREATE_PARAMS_KEY_NAME
                ]
            except ValueError as error:
                raise self._bad(number, str(error)) from error
        ref = row.get(AGENT_REF_KEY_NAME)
        agent = ref.get("name") if isinstance(ref, Mapping) else None
        if not agent:
            agent = self.config.agent_name
            if not agent:
                self._without_agent.append(index)
                return None
            row[AGENT_REF_KEY_NAME] = {"name": agent}
        if self.config.responses_create_params:
            row[RESPONSES_CREATE_PARAMS_KEY_NAME] |= self.config.responses_create_params
        return str(agent)

    def _task_index(self, row: Row, data: bytes, number: int) -> int:
        given = row.pop(TASK_INDEX_KEY_NAME, None)
        row.pop(ROLLOUT_INDEX_KEY_NAME, None)
        if self._own_index is None:
            self._own_index = given is not None
        if self._own_index != (given is not None):
            has, had = ("has a", "have none") if given is not None else ("has no", "have one")
            reason = f"the line {has} {TASK_INDEX_KEY_NAME}, rows before it {had}"
            raise self._bad(number, f"{reason}; give it to all rows or to none")
        if given is None:
            return self._tasks.setdefault(blake2b(data, digest_size=16).digest(), len(self._tasks))
        if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given < 2**31:
            raise self._bad(
                number, f"{TASK_INDEX_KEY_NAME} is {given!r}; it must be a whole number from 0 to {2**31 - 1}"
            )
        return given

    def _repeat(self, row: Row, agent: str, task: int) -> Iterator[PlanLine]:
        repeats = self._repeats(agent)
        first = self._first_rollout(task, repeats)
        self.rollouts_by_agent[agent] += repeats
        encoded = b"" if self.config.num_repeats_add_seed else encode_json(row)
        for rollout in range(first, first + repeats):
            if self.config.num_repeats_add_seed:
                row[RESPONSES_CREATE_PARAMS_KEY_NAME]["seed"] = rollout
                encoded = encode_json(row)
            indices = b',"%s":%d,"%s":%d}' % (_TASK_INDEX, task, _ROLLOUT_INDEX, rollout)
            yield PlanLine(Key(task, rollout), agent, encoded[:-1] + indices)

    def _first_rollout(self, task: int, repeats: int) -> int:
        """The next rollout index of the task."""
        if self._own_index:
            first = self._given_rollouts.get(task, 0)
            self._given_rollouts[task] = first + repeats
            return first
        if task == len(self._rollouts):
            self._rollouts.append(0)
        first = self._rollouts[task]
        self._rollouts[task] = first + repeats
        return first

    def _repeats(self, agent: str) -> int:
        repeats = self.config.num_repeats
        if isinstance(repeats, dict):
            given = repeats.get(agent, repeats.get(DEFAULT_REPEATS_KEY))
            if given is None:
                self._without_repeats.add(agent)
            return given or 0
        return 1 if repeats is None else repeats

    def unused_repeats(self) -> list[str]:
        """Entries of `num_repeats` for agents that do not occur."""
        repeats = self.config.num_repeats
        names = set(repeats) if isinstance(repeats, dict) else set()
        return sorted(names - {DEFAULT_REPEATS_KEY} - set(self.rollouts_by_agent))

    def _check(self) -> None:
        if self._with_input:
            raise InputError(
                f"{self.source}: prompt_config builds the input, but rows {listed(self._with_input)} have a "
                f"{RESPONSES_CREATE_PARAMS_KEY_NAME}.input of their own; remove it from the rows, or omit "
                "prompt_config"
            )
        if self._without_agent:
            known = f" ({', '.join(self.agents)})" if self.agents else ""
            raise InputError(
                f"{self.source}: rows {listed(self._without_agent)} have no agent; pass +agent_name=<name>"
                f'{known}, or add "{AGENT_REF_KEY_NAME}": {{"name": "<name>"}} to the rows'
            )
        if self._without_repeats:
            raise InputError(
                f"num_repeats has no entry for {', '.join(sorted(self._without_repeats))}; add one for each, "
                f"or one for all other agents: +num_repeats.{DEFAULT_REPEATS_KEY}=1"
            )
        if not self.num_rows:
            raise InputError(f"{self.source}: the file has no rows; write one JSON object per line")

    def _bad(self, number: int, reason: str) -> InputError:
        return InputError(f"{self.source}:{number}: {reason}")


def _rollout_request_debug_summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """The indices and the agent of a row, for messages."""
    ref = row.get(AGENT_REF_KEY_NAME)
    summary = {
        TASK_INDEX_KEY_NAME: row.get(TASK_INDEX_KEY_NAME),
        ROLLOUT_INDEX_KEY_NAME: row.get(ROLLOUT_INDEX_KEY_NAME),
        "agent_name": ref.get("name") if isinstance(ref, Mapping) else None,
    }
    return {name: value for name, value in summary.items() if value is not None}


_TASK_INDEX = TASK_INDEX_KEY_NAME.encode()
_ROLLOUT_INDEX = ROLLOUT_INDEX_KEY_NAME.encode()


def listed(indices: list[int]) -> str:
    """All indices; long lists as ranges, of which the first are shown."""
    if len(indices) <= _MOST_NAMED:
        return ", ".join(map(str, indices))
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and ranges[-1][-1] == index - 1:
            ranges[-1][1:] = [index]
        else:
            ranges.append([index])
    text = ", ".join("-".join(map(str, one)) for one in ranges[:_MOST_RANGES])
    return text if len(ranges) <= _MOST_RANGES else f"{text}, … ({len(indices)} rows in all)"
