"""Sessions end: a long run of the session-state example takes no more memory than a short one."""

import json
import os
import subprocess
import sys

from tests.support.commands import ROOT

ROLLOUTS = int(os.environ.get("SOAK_SESSIONS", "2000"))
GROWTH_MB = 16.0
"""Between a tenth of the run and its end. A session that is never closed takes about 1 KB."""


def test_sessions_of_many_rollouts_take_bounded_memory() -> None:
    command = [sys.executable, "-m", "tests.support.session_soak", str(ROLLOUTS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sys.stdout.write(f"{done.stdout}\n")
    measured = json.loads(done.stdout)
    assert measured["rollouts"] >= ROLLOUTS
    assert (measured["counters"], measured["sessions"]) == (0, 0)
    assert measured["mb_at_end"] - measured["mb_at_10_percent"] < GROWTH_MB
