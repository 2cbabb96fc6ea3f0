"""Conversion of group metrics for W&B."""

import math

import wandb

from nemo_rl.experience.group_metrics import stats
from nemo_rl.utils.wandb_metrics import as_wandb


def test_histograms_and_tables_become_wandb_objects_and_numbers_are_unchanged() -> None:
    table = {"columns": ["Full result"], "data": [["{}"], ["{}"]]}
    metrics = stats([1.0, 0.0], 2, "total_reward") | {"calc/full_result": table, "workers": {0: 3}}
    shown = as_wandb(metrics)
    assert isinstance(shown["total_reward/histogram"], wandb.Histogram)
    assert shown["calc/full_result"].data == [["{}"], ["{}"]]
    assert shown["total_reward/mean"] == 0.5 and shown["workers"] == {0: 3}
    assert metrics["total_reward/histogram"] == {"values": [1.0, 0.0]}


def test_lists_of_lengths_become_histograms_without_infinite_values() -> None:
    metrics = stats([1.0, math.inf], 2, "calc/odd") | {"histogram/gen_tokens_length": [3, 4, 5]}
    shown = as_wandb(metrics)
    assert sum(shown["calc/odd/histogram"].histogram) == 1
    assert sum(shown["histogram/gen_tokens_length"].histogram) == 3
