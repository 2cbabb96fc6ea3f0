"""Numbers that rollouts have copied from their rows: they describe the tasks, not what the agent did.

A field is copied if it is a numeric top-level field of the rows, and every rollout that has it has the value
of its row. The reward never counts as copied.
"""

from collections.abc import Iterable, Mapping

from nemo_gym.metrics.columns import Columns
from nemo_gym.metrics.lazy_numpy import np
from nemo_gym.metrics.numeric_fields import row_numbers
from nemo_gym.metrics.profile import keys_of
from nemo_gym.metrics.statistics import as_floats
from nemo_gym.records import Record, agent_of, unpacked

_ENOUGH_ROWS = 100
"""If the first rows of an agent have no number in common with its rollouts, the others are not read."""


def count_copied(columns: Mapping[str, Columns], rows: Iterable[tuple[int, Record]]) -> None:
    """Count, for each agent, the values that equal those of the rows. `rows` come with their packed keys."""
    if not columns:
        return
    by_agent: dict[str, Columns] = {}
    for packed_key, row in rows:
        agent = agent_of(row)
        if agent not in columns:
            continue
        found = by_agent.setdefault(agent, Columns())
        if len(found) >= _ENOUGH_ROWS and not found.names:
            if len(by_agent) == len(columns) and not any(map(_is_needed, by_agent.values())):
                return
            continue
        known = columns[agent]
        numbers = {name: value for name, value in row_numbers(row).items() if name in known}
        found.add(*unpacked(packed_key), numbers)
    for agent, found in by_agent.items():
        for name in found.names:
            columns[agent].copied[name] = _equal_values(columns[agent], found, name)


def _is_needed(rows: Columns) -> bool:
    return bool(rows.names) or len(rows) < _ENOUGH_ROWS


def _equal_values(rollouts: Columns, rows: Columns, name: str) -> int:
    """How many rollouts have the value of their row."""
    row_keys = keys_of(rows)
    order = np.argsort(row_keys, kind="stable")
    row_keys, row_values = row_keys[order], as_floats(rows.values(name))[order]
    keys = keys_of(rollouts)
    places = np.minimum(np.searchsorted(row_keys, keys), len(row_keys) - 1)
    is_equal = (row_keys[places] == keys) & (row_values[places] == as_floats(rollouts.values(name)))
    return int(is_equal.sum())
