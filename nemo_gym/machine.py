"""What this machine offers to the process."""

import os


def available_cores() -> int:
    """The number of cores that this process may use; where the system cannot say, the number of all cores."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
