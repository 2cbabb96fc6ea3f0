"""Reads the files of a run and writes the reward profile of each task beside them.

Invariant: memory holds the key and offset of each row and the numbers of each rollout, never a row or a
transcript. The written files are complete or unchanged.
"""

import json
from array import array
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from nemo_gym.codec import decode_json, encode_json
from nemo_gym.config.roots import expand
from nemo_gym.errors import ConfigError, InputError, JournalError
from nemo_gym.journal import Line, line_numbers, new_file, read_lines
from nemo_gym.metrics import Columns, Intake
from nemo_gym.metrics.profile import (
    MOST_NAMED,
    Difficulty,
    Join,
    Profile,
    RewardProfileConfig,
    Rows,
    key_list,
    keys_of,
)
from nemo_gym.metrics.uncertainty import Estimate
from nemo_gym.path_utils import agent_metrics_path_for, materialized_path_for, reward_profile_path_for
from nemo_gym.records import (
    SKIP_HINT,
    BadLines,
    Key,
    Record,
    agent_of,
    key_of,
    packed,
    parsed,
    read_rollouts,
    unpacked,
)
from nemo_gym.rollout_collection.recording.rollouts import OutputIndex
from nemo_gym.rollout_collection.recording.scan import Found, find_rollouts
from nemo_gym.terminal import counted, one_line
from nemo_gym.types import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

_REWARD = "reward"


class AgentRewards(NamedTuple):
    """The rewards of one agent."""

    tasks: int
    rollouts: int
    reward: Estimate | None
    """None if no rollout has a reward."""
    metrics: Record
    """The metrics as written to the file."""


@dataclass(frozen=True)
class ProfiledRewards:
    """The written files and a summary of their content."""

    summary: dict[str, int]
    """The counts of `profile_completion_summary`."""
    agents: list[AgentRewards]
    difficulty: Difficulty
    groups_path: Path
    agents_path: Path


def profile_rewards(config: RewardProfileConfig, bad_lines: BadLines | None = None) -> ProfiledRewards:
    """Profile the rollouts of a run and write the profile beside them.

    `bad_lines` decides about lines that are not rows or rollouts, lines that repeat a key, and rollouts by
    an agent other than their task's.
    """
    bad_lines = BadLines() if bad_lines is None else bad_lines
    source = _Source(expand(config.materialized_inputs_jsonl_fpath), expand(config.rollouts_jsonl_fpath))
    source.refuse_paths()
    source.read_rows(bad_lines)
    found, join = source.join(bad_lines)
    source.refuse_unjoined(found, join, config.allow_partial_rollouts)
    return _write(source, join, found.columns)


class _Source:
    """The two input files."""

    def __init__(self, materialized: Path, rollouts: Path) -> None:
        self.materialized = materialized
        self.rollouts = rollouts
        self.rows = Rows()
        self.offsets = array("q")
        """Offset of each row."""

    def refuse_paths(self) -> None:
        if not self.rollouts.exists():
            raise InputError(
                f"{self.rollouts}: no such file; give the file that ng_collect_rollouts wrote, its "
                "+output_jsonl_fpath="
            )
        if not self.materialized.exists():
            beside = materialized_path_for(self.rollouts)
            hint = (
                f"did you mean +materialized_inputs_jsonl_fpath={beside}?"
                if beside.exists()
                else "ng_collect_rollouts writes the materialized inputs beside its output; give their path "
                "with +materialized_inputs_jsonl_fpath=<path>"
            )
            raise InputError(f"{self.materialized}: no such file; {hint}")
        if self.rollouts.samefile(self.materialized):
            raise ConfigError(
                f"{self.rollouts}: given as both rollouts and materialized inputs; give two different files"
            )

    def read_rows(self, bad_lines: BadLines) -> None:
        try:
            for line in read_lines(self.materialized):
                if line.data.strip():
                    try:
                        key, agent = _checked_row(self.materialized, line)
                    except InputError as error:
                        bad_lines.take(error)
                        continue
                    self.rows.add(key, agent)
                    self.offsets.append(line.offset)
        except OSError as error:
            raise _unreadable(self.materialized, error) from error

    def join(self, bad_lines: BadLines) -> tuple[Found, Join]:
        """The rollouts joined with the rows, without rollouts by an agent other than their task's."""
        found = find_rollouts(self.rollouts, bad_lines)
        join = _join(self.rows, found)
        self._take_repeats(join, bad_lines)
        extra = set(join.without_row().tolist()) if bad_lines.are_skipped else set[int]()
        odd = set(join.of_other_agents().tolist()) | extra
        if odd:
            found = self._without(odd, extra, join, bad_lines)
            join = _join(self.rows, found)
        return found, join

    def _take_repeats(self, join: Join, bad_lines: BadLines) -> None:
        repeats = join.repeats()
        offsets = {self.offsets[place] for repeat in repeats for place in repeat}
        lines = line_numbers(self.materialized, offsets)
        for place, first in repeats:
            number, key = lines[self.offsets[place]], unpacked(self.rows.keys[place])
            bad_lines.take(
                InputError(
                    f"{self.materialized}:{number}: repeats planned rollout {key} of line "
                    f"{lines[self.offsets[first]]}; remove one, {SKIP_HINT}"
                )
            )

    def _without(self, odd: set[int], extra: set[int], join: Join, bad_lines: BadLines) -> Found:
        """Read the rollouts again without those that have no row or are by the wrong agent."""
        found = Found()
        intakes: defaultdict[str, Intake] = defaultdict(lambda: Intake(Columns()))
        for line, record, key, agent in read_rollouts(
            self.rollouts, BadLines(bad_lines.are_skipped), once=True
        ):
            if packed(key) in odd:
                reason = self._reason(key, agent, join, extra)
                bad_lines.take(InputError(f"{self.rollouts}:{line.number}: {reason}, {SKIP_HINT}"))
                continue
            found.index.add(key, line.offset)
            intakes[agent].take(*key, record)
        found.columns.update({agent: intake.columns for agent, intake in intakes.items()})
        return found

    def _reason(self, key: Key, agent: str, join: Join, extra: set[int]) -> str:
        if packed(key) in extra:
            return f"rollout {key} is not planned in {self.materialized}; remove the line"
        owner = one_line(join.agent(key.task))
        return (
            f"mixed agents: rollout {key} is by {one_line(agent)}, task {key.task} belongs to {owner}; "
            "remove the line"
        )

    def refuse_unjoined(self, found: Found, join: Join, allow_partial: bool) -> None:
        extra = join.without_row()
        if len(extra):
            named = [unpacked(key) for key in extra[:MOST_NAMED].tolist()]
            lines = self._lines_of(named, found.index)
            places = ", ".join(f"{key} (line {line})" for key, line in zip(named, lines, strict=True))
            more = f" and {len(extra) - len(named)} more" if len(extra) > len(named) else ""
            raise InputError(
                f"{self.rollouts}:{lines[0]}: {counted(len(extra), 'rollout')} not planned in "
                f"{self.materialized}: {places}{more}; give the materialized inputs of the same run, "
                f"{SKIP_HINT}"
            )
        missing = join.without_result()
        if len(missing) and not allow_partial:
            raise InputError(
                f"{self.rollouts}: {len(missing)} of the {join.summary()['expected_rollouts']} rollouts that "
                f"{self.materialized} plans are missing: {key_list(missing)}; collect them with "
                "+resume_from_cache=true, or profile the others with +allow_partial_rollouts=true"
            )
        if len(found.index.keys) and not any(map(_has_reward, found.columns.values())):
            raise InputError(f"{self.rollouts}: no line has a reward; give a rollouts file")

    def _lines_of(self, keys: list[Key], index: OutputIndex) -> list[int]:
        offsets = [index.offsets[index.keys.index(packed(key))] for key in keys]
        lines = line_numbers(self.rollouts, offsets)
        return [lines[offset] for offset in offsets]

    def row(self, file: IO[bytes], place: int) -> Record:
        """Read the row at a position."""
        try:
            file.seek(self.offsets[place])
            row = decode_json(file.readline())
        except OSError as error:
            raise _unreadable(self.materialized, error) from error
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or key_of(row) != unpacked(self.rows.keys[place]):
            raise InputError(
                f"{self.materialized}: the file changed while it was read; run the profile again"
            )
        return row


def _checked_row(path: Path, line: Line) -> tuple[Key, str]:
    place = f"{path}:{line.number}"
    try:
        row = parsed(line.data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not JSON: {error}; repair or remove the line, {SKIP_HINT}") from error
    key = key_of(row) if isinstance(row, dict) else None
    if key is None:
        raise InputError(
            f"{place}: not a materialized input: {TASK_INDEX_KEY_NAME} and {ROLLOUT_INDEX_KEY_NAME} must be "
            f"integers; give the file that ng_collect_rollouts wrote, {SKIP_HINT}"
        )
    return key, agent_of(row)


def _join(rows: Rows, found: Found) -> Join:
    return Join(rows, {agent: keys_of(columns) for agent, columns in found.columns.items()})


def _has_reward(columns: Columns) -> bool:
    return _REWARD in columns.names or bool(columns.non_finite[_REWARD])


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read: {error.strerror}; check the name and the permissions")


def _write(source: _Source, join: Join, columns: dict[str, Columns]) -> ProfiledRewards:
    groups_path, agents_path = (
        reward_profile_path_for(source.rollouts),
        agent_metrics_path_for(source.rollouts),
    )
    difficulty = Difficulty()
    try:
        with ExitStack() as stack:
            rows = stack.enter_context(source.materialized.open("rb"))
            groups_file = stack.enter_context(new_file(groups_path))
            agents_file = stack.enter_context(new_file(agents_path))
            profile = Profile(join, columns, partial(source.row, rows))
            for group in profile.groups():
                difficulty.take(group)
                groups_file.write(encode_json(group) + b"\n")
            agents = profile.agents()
            agents_file.write(json.dumps(agents, indent=2).encode() + b"\n")
    except JournalError as error:
        reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else None
        raise ConfigError(
            f"cannot write beside {source.rollouts}: {reason or error.__cause__}; free some space, make the "
            "folder writable, or copy the rollouts to another folder"
        ) from error
    agent_rewards = [
        AgentRewards(len(own.by_task()), len(own), own.estimate(_REWARD), metrics)
        for own, metrics in zip(profile.columns.values(), agents, strict=True)
    ]
    return ProfiledRewards(join.summary(), agent_rewards, difficulty, groups_path, agents_path)
