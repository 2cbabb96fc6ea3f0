"""`python -m tests.support.campaign KILLS [SEED]`: prints kills, faults and keys; exit code 1 on any loss."""

import os
import sys
import tempfile
import time
from pathlib import Path

from scripts.scripted_endpoint import ScriptedEndpoint
from tests.support.campaign.campaign import Campaign
from tests.support.campaign.tally import Tally
from tests.support.collecting import Adder

SHOW_EVERY = 25


def show(tally: Tally) -> None:
    if tally.rounds % SHOW_EVERY == 0:
        kills, keys = tally.kills.total(), tally.keys
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {kills} kills, {tally.rounds} rounds, {keys} keys\n")


def main(kills: int, seed: int) -> int:
    # Faults of the environment count as data failures; a campaign has far more of them than a run.
    os.environ["NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"] = "1000"
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    adder = Adder()
    with ScriptedEndpoint(adder) as endpoint:
        tally = Campaign(folder, endpoint, adder, seed).run(kills, show)
    sys.stdout.write(f"{tally.report(seed)}\n")
    if tally.violations:
        sys.stdout.write(f"The files are in {folder}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 1_000_000))
