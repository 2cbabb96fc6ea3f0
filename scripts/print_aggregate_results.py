"""Print the mean of every numeric field of a rollouts file as a JSON object, per agent if there are several.

example: python scripts/print_aggregate_results.py +jsonl_fpath=rollouts.jsonl

  +jsonl_fpath=  str, required
      The rollouts, one JSON object per line. A relative path is below the working directory.

Also accepted: jsonl_fpath=x, ++jsonl_fpath=x, --jsonl_fpath x, --jsonl_fpath=x.
"""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from nemo_gym.cli.main import discard_output
from nemo_gym.config import parse_arguments, string_fields, validate_fields
from nemo_gym.config.known_settings import AcceptedSettings
from nemo_gym.config.roots import expand
from nemo_gym.config.unknown import refuse_unknown, undeclared_paths
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.errors import ConfigError, NeMoGymError
from nemo_gym.journal import read_objects
from nemo_gym.metrics import numeric_fields
from nemo_gym.types import AGENT_REF_KEY_NAME

NO_AGENT = "(no agent)"
"""The key for rollouts without an agent, if there are others."""


class Options(BaseNeMoGymCLIConfig):
    model_config = ConfigDict(extra="forbid")

    jsonl_fpath: str


@dataclass
class Mean:
    """A mean in constant memory, with Neumaier summation, which stays exact over millions of values."""

    count: int = 0
    total: float = 0.0
    lost: float = 0.0
    """The rounding error of the total so far."""

    def add(self, value: float) -> None:
        total = self.total + value
        larger, smaller = (self.total, value) if abs(self.total) >= abs(value) else (value, self.total)
        self.lost += (larger - total) + smaller
        self.total = total
        self.count += 1

    @property
    def value(self) -> float:
        return (self.total + self.lost) / self.count


@dataclass
class AgentMeans:
    """The means of one agent's rollouts."""

    fields: dict[str, Mean] = field(default_factory=dict)

    def add(self, rollout: Mapping[str, Any]) -> None:
        for name, value in numeric_fields(rollout).items():
            self.fields.setdefault(name, Mean()).add(value)

    def values(self) -> dict[str, float]:
        """The means, the reward first, without those that overflow."""
        names = sorted(self.fields, key=lambda name: name != "reward")
        means = {name: self.fields[name].value for name in names}
        return {name: mean for name, mean in means.items() if math.isfinite(mean)}


def aggregate_results(path: Path) -> dict[str, Any]:
    """Field → mean, or agent → field → mean if there are several agents."""
    agents: dict[str, AgentMeans] = {}
    for _, rollout in read_objects(path):
        agents.setdefault(agent_name(rollout), AgentMeans()).add(rollout)
    if not agents:
        raise ConfigError(f"{path}: the file contains no rollouts; give the output of a collection")
    results = {name: means.values() for name, means in agents.items()}
    return results if len(results) > 1 else next(iter(results.values()))


def agent_name(rollout: Mapping[str, Any]) -> str:
    agent = rollout.get(AGENT_REF_KEY_NAME)
    name = agent.get("name") if isinstance(agent, Mapping) else None
    return name if isinstance(name, str) else NO_AGENT


def run(arguments: list[str]) -> None:
    if not {"--help", "-h"}.isdisjoint(arguments):
        print(__doc__.strip())
        return
    overrides = parse_arguments(arguments, string_fields(Options))
    accepted = AcceptedSettings(tuple(Options.model_fields), also=(), otherwise="set only +jsonl_fpath=")
    refuse_unknown(undeclared_paths(overrides, {}), overrides, {}, accepted)
    options = validate_fields(Options, overrides.values, overrides.texts)
    print(json.dumps(aggregate_results(expand(options.jsonl_fpath)), indent=2))


def main() -> None:
    try:
        run(sys.argv[1:])
        sys.stdout.flush()
    except NeMoGymError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        discard_output()


if __name__ == "__main__":
    main()
