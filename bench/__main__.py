"""`make bench`: every benchmark, one after the other; exit code 1 if a bar is missed."""

import sys

from bench import calls, collection, metrics, models, rollouts, startup, wire_models


def main() -> int:
    results = [
        benchmark.main() for benchmark in (wire_models, startup, calls, models, metrics, rollouts, collection)
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
