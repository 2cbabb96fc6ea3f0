"""A collection needs nothing that only Linux has."""

import os
import select
from pathlib import Path

from scripts.scripted_endpoint import ScriptedEndpoint
from tests.support.collecting import Adder, CollectionRuns

LINUX_ONLY = """
import os, pathlib, select
del os.sched_getaffinity, select.POLLRDHUP
os.process_cpu_count = os.cpu_count  # as Python 3.13 defines it without sched_getaffinity
pathlib.Path(__file__).with_name(f"{os.getpid()}.started").touch()
"""


class RemoveLinuxOnly:
    """Makes this process and those that it starts look like those of another Unix."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self) -> None:
        os.environ["PYTHONPATH"] = str(self.folder)  # Python runs a sitecustomize that it finds there
        del os.sched_getaffinity
        del select.POLLRDHUP
        vars(os)["process_cpu_count"] = os.cpu_count  # as Python 3.13 defines it without sched_getaffinity


def test_collection_in_worker_processes_needs_neither_cpu_affinity_nor_pollrdhup(tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "sitecustomize.py").write_text(LINUX_ONLY)
    adder = Adder()
    with ScriptedEndpoint(adder) as endpoint:
        runs = CollectionRuns(tmp_path, endpoint, adder, 6)
        collector = runs.start(RemoveLinuxOnly(changed), executor="processes")
        assert collector.wait() == 0, collector.output
        runs.check_complete()
        assert len(list(changed.glob("*.started"))) >= min(os.cpu_count() or 1, 6), "one per worker"
        assert len(runs.recorded()) == 6
