"""What `RolloutCollectionHelper.run_from_config` returns."""

import os
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from nemo_gym.codec import decode_json
from nemo_gym.journal import read_lines
from nemo_gym.path_utils import aggregate_metrics_path_for, failures_path_for, manifest_path_for
from nemo_gym.records import key_of, packed, parsed
from nemo_gym.rollout_collection.recording.ledger import Ledger
from nemo_gym.rollout_collection.recording.rollouts import Rollouts
from nemo_gym.rollout_collection.results.collected import Collected


class CollectionResult(Rollouts):
    """The rollouts, sorted by key and read when they are used, with the rest of the result."""

    def __init__(self, rollouts: Rollouts, keys: Iterable[int], ledger: Ledger) -> None:
        super().__init__(rollouts.path, rollouts.offsets)
        self.ledger = ledger
        """How many rollouts were planned, succeeded, failed by kind, and did not run."""
        self.manifest: dict[str, Any] = {}
        """The settings and inputs of the run."""
        self._keys = keys
        self._has_metrics = False

    @classmethod
    def of(cls, collected: Collected) -> "CollectionResult":
        result = cls(collected.rollouts, collected.keys, collected.ledger)
        result.manifest = decode_json(manifest_path_for(collected.output).read_bytes())
        result._has_metrics = collected.entries is not None
        return result

    @classmethod
    def empty(cls) -> "CollectionResult":
        """The result of a dry run."""
        return cls(Rollouts(Path(os.devnull), array("q")), (), Ledger(planned=0))

    @cached_property
    def metrics(self) -> list[dict[str, Any]] | None:
        """The aggregate metrics, one entry per agent; None if they were not computed."""
        if not self._has_metrics:
            return None
        metrics: list[dict[str, Any]] = decode_json(aggregate_metrics_path_for(self.place).read_bytes())
        return metrics

    @cached_property
    def failures(self) -> Sequence[dict[str, Any]]:
        """The last failure of each rollout that did not succeed, sorted by key, each read when it is used."""
        path = failures_path_for(self.place)
        return Rollouts(path, _last_failures(path, set(self._keys))) if path.exists() else []


def _last_failures(path: Path, succeeded: set[int]) -> "array[int]":
    """Where the last record of each key begins, except for these packed keys."""
    last: dict[int, int] = {}
    for line in read_lines(path):
        with suppress(ValueError, RecursionError):  # a line that a killed run left torn
            record = parsed(line.data)
            key = key_of(record) if isinstance(record, dict) else None
            if key is not None:
                last[packed(key)] = line.offset
    return array("q", (last[key] for key in sorted(last.keys() - succeeded)))
