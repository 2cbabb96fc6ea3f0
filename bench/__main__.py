"""`make bench`: runs all benchmarks, one after another; exit code 1 if a bar is missed.

Each benchmark runs in its own process, so that the modules of one affect neither the memory nor the time of
the next.
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
