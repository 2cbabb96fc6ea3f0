"""Writes the rollouts files of two runs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Numbers = Mapping[str, Any]
Rollouts = Mapping[int, Sequence[float | Numbers]]
"""The rollouts of each task: their rewards, or all their fields."""


def records(rollouts: Rollouts, agent: str = "shop") -> list[dict[str, Any]]:
    return [
        {
            "_ng_task_index": task,
            "_ng_rollout_index": number,
            "agent_ref": {"name": agent},
            **(one if isinstance(one, Mapping) else {"reward": one}),
        }
        for task, group in rollouts.items()
        for number, one in enumerate(group)
    ]


def write(path: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def both(a: Path, b: Path, tasks: int = 4) -> None:
    write(a, records({task: [1, 0] for task in range(tasks)}))
    write(b, records({task: [1, 1] for task in range(tasks)}))
