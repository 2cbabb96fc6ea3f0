"""`make bench`: every benchmark, one after the other; exit code 1 if a bar is missed."""

import sys

from bench import (
    calls,
    collection,
    generation,
    metrics,
    models,
    rollout_manager,
    rollouts,
    startup,
    wire_models,
)

BENCHMARKS = (
    wire_models,
    startup,
    calls,
    models,
    metrics,
    rollout_manager,
    generation,
    rollouts,
    collection,
)


def main() -> int:
    results = [benchmark.main() for benchmark in BENCHMARKS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
