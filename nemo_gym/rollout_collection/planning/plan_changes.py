"""How the plan of a run differs from that of an earlier run, and whether the earlier one can be used."""

import os
from pathlib import Path
from typing import Any

from nemo_gym.config.hints import listed
from nemo_gym.errors import ChangedInputsError, JournalError
from nemo_gym.journal import read_lines
from nemo_gym.records import Key, parsed, unpacked
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.planning.materialize import INPUT_DIGEST, RECIPE_DIGEST
from nemo_gym.rollout_collection.planning.remaining import packed_key_of
from nemo_gym.rollout_collection.recording.manifest import Manifest, differences, flattened
from nemo_gym.terminal import counted

MOST_SHOWN = 10
"""Differences that are shown; others are counted."""


def broken_plan(path: Path, least: int) -> str | None:
    """Why the plan of an earlier run, of at least so many rollouts, cannot be used; None if it can."""
    if not path.is_file():
        return "was not found" if not os.path.lexists(path) else "is not a file"
    number = 0
    try:
        for line in read_lines(path):
            packed_key_of(line.data, path)
            number = line.number
            if not line.is_ended or not isinstance(parsed(line.data), dict):
                return f"is incomplete at line {number}"
    except (OSError, ValueError, RecursionError, JournalError):
        return f"cannot be read from line {number + 1} on"
    return f"has only {number} of {least} lines" if number < least else None


def check_without_input(
    config: RolloutCollectionConfig, recipe: dict[str, Any], earlier: Manifest | None
) -> str:
    """Refuse to change a plan whose input file is missing; returns a message if the plan stays the same."""
    inputs = earlier.data.get("materialized_inputs") if earlier is not None else None
    if other := changed_recipe(inputs, recipe):
        raise ChangedInputsError(
            f"{config.input_jsonl_fpath}: not found; it is needed because the plan has changed:"
            f"{listed_changes(other)}\nPut the file back, or resume with the settings of the earlier run"
        )
    return f"{config.input_jsonl_fpath}: not found; continuing with {config.materialized_jsonl_fpath}"


def changed_recipe(inputs: Any, now: dict[str, Any]) -> list[str]:
    """Settings that would make another plan, for when the input itself cannot be compared."""
    before = inputs.get("recipe") if isinstance(inputs, dict) else None
    if not isinstance(before, dict):
        return []
    settings = (
        {
            key: value
            for key, value in flattened(recipe)
            if key not in (INPUT_DIGEST, RECIPE_DIGEST) and value != {}
        }
        for recipe in (before, now)
    )
    return differences(*settings)


def changed_rows(before: Path, now: Path) -> list[str]:
    """How the new plan differs from the earlier one. Additional rollouts are not a difference."""
    hashes = {packed_key_of(line.data, before): (line.offset, hash(line.data)) for line in read_lines(before)}
    changes: dict[str, list[Key]] = {}
    for line in read_lines(now):
        packed_key = packed_key_of(line.data, now)
        found = hashes.pop(packed_key, None)
        if found is not None and found[1] != hash(line.data):
            for change in _row_differences(_line_at(before, found[0]), line.data):
                changes.setdefault(change, []).append(unpacked(packed_key))
    texts = [f"{change} ({_of(keys)})" for change, keys in changes.items()]
    if hashes:
        texts.append(fewer_rollouts(len(hashes)))
    return texts


def fewer_rollouts(missing: int) -> str:
    lacking = counted(missing, "rollout")
    return f"this plan lacks {lacking} of the earlier plan; was limit or num_repeats reduced?"


def listed_changes(changed: list[str]) -> str:
    return listed(changed[:MOST_SHOWN]) + and_more(len(changed))


def and_more(number: int) -> str:
    return f"\n  … and {number - MOST_SHOWN} more" if number > MOST_SHOWN else ""


def _row_differences(before: bytes, now: bytes) -> list[str]:
    return differences(dict(flattened(parsed(before))), dict(flattened(parsed(now))))


def _of(keys: list[Key]) -> str:
    return f"rollout {keys[0]}" if len(keys) == 1 else f"{len(keys)} rollouts, the first is {keys[0]}"


def _line_at(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.readline()
