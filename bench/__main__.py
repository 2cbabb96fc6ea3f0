"""`make bench`: every benchmark, one after the other; exit code 1 if a bar is missed.

Each in a process of its own: what one has loaded is neither in the memory nor in the time of the next.
"""

import subprocess
import sys

BENCHMARKS = (
    "wire_models",
    "startup",
    "calls",
    "models",
    "metrics",
    "rollout_manager",
    "generation",
    "rollouts",
    "collection",
)


def main() -> int:
    codes = [subprocess.run([sys.executable, "-m", f"bench.{name}"]).returncode for name in BENCHMARKS]
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main())
