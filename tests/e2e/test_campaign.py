"""A short campaign of kills and faults; `make soak` runs a long one."""

from pathlib import Path

from tests.support.campaign.campaign import Campaign
from tests.support.collecting import CollectionRuns

KILLS = 6
SEED = 1


def test_campaign_of_kills_and_faults_neither_loses_nor_repeats_a_rollout(
    runs: CollectionRuns, tmp_path: Path
) -> None:
    campaign = Campaign(tmp_path / "campaign", runs.endpoint, runs.adder, SEED)
    tally = campaign.run(KILLS)
    assert not tally.violations, tally.report(SEED)
    assert tally.kills.total() >= KILLS and tally.completed > 0
