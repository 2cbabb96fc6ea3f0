"""What a campaign has done and found."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts of a campaign."""

    kills: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By hosting, victim and phase."""
    faults: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    """Collections that were started or resumed."""
    completed: int = 0
    """Collections that were played to the end, over any number of rounds."""
    keys: int = 0
    """Rollouts of the completed collections, each recorded exactly once."""
    violations: list[str] = field(default_factory=list)
    """Broken promises: a rollout lost or played twice, a wrong exit code, a process left behind."""

    def report(self, seed: int) -> str:
        lines = [
            f"{self.kills.total()} kills, {self.faults.total()} faults in {self.rounds} rounds (seed {seed})"
        ]
        for (hosting, victim, phase), count in sorted(self.kills.items()):
            lines.append(f"  killed {victim:<9} {hosting:<9} {phase:<9} {count:>5}")
        for fault, count in sorted(self.faults.items()):
            lines.append(f"  fault  {fault:<29} {count:>5}")
        lines.append(
            f"{self.keys} keys in {self.completed} completed collections, each recorded exactly once"
        )
        lines += [f"VIOLATION {text}" for text in self.violations]
        lines.append(f"{len(self.violations)} losses, duplicates and other broken promises")
        return "\n".join(lines)
