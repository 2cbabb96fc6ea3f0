"""Which members of a group train, and which vote in its baseline."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_rl.experience.integrity import advantage_audit, is_flagged, mask_reason
from nemo_rl.experience.interfaces import Completion, GroupIntegrity, PromptGroupRecord

FLAG_IN_CONFIG = {"instance_config": {"mask_sample": True, "other": 1}}
FLAG_ON_TOP = {"mask_sample": True}


def member(reward: float, extras: dict[str, Any] | None = None, failure: str | None = None) -> Completion:
    return Completion([], extras, False, reward, failure=failure)


def group(*members: Completion, **rules: Any) -> PromptGroupRecord:
    failures = {index: one.failure for index, one in enumerate(members) if one.failure}
    return PromptGroupRecord(3, [], None, {}, list(members), {}, GroupIntegrity(**rules), failures)


def test_all_members_of_a_group_without_failures_vote_and_train() -> None:
    audit = advantage_audit(group(member(1), member(0), member(0), member(1)))
    assert audit.baseline == 0.5 and audit.std == pytest.approx(0.57735, abs=1e-5)
    assert audit.advantages == [0.5, -0.5, -0.5, 0.5]
    assert all(one.votes and one.trains and one.reason == "votes and trains" for one in audit.members)


@pytest.mark.parametrize(
    "out", [member(0, FLAG_IN_CONFIG), member(0, FLAG_ON_TOP), member(0, failure="RolloutTimeout: slow")]
)
def test_a_masked_or_failed_member_never_votes(out: Completion) -> None:
    audit = advantage_audit(group(member(1), out, member(1), member(0)))
    assert audit.baseline == pytest.approx(2 / 3)
    assert [one.votes for one in audit.members] == [True, False, True, True]
    assert [one.trains for one in audit.members] == [True, False, True, True]
    assert audit.advantages[1] == 0.0
    assert mask_reason(out) in audit.members[1].reason


def test_legacy_baseline_counts_flagged_members_but_not_failed_ones() -> None:
    members = (member(1), member(0, FLAG_ON_TOP), member(0, failure="x"))
    audit = advantage_audit(group(*members, legacy_baseline=True))
    assert audit.baseline == 0.5
    assert [one.votes for one in audit.members] == [True, True, False]
    assert [one.trains for one in audit.members] == [True, False, False]
    assert "all but failed" in audit.rule


def test_flag_must_be_exactly_true() -> None:
    assert not is_flagged(None) and not is_flagged({})
    assert not is_flagged({"mask_sample": False, "instance_config": {"mask_sample": 0}})
    assert not is_flagged({"instance_config": "mask_sample"})


def test_leave_one_out_compares_a_member_with_the_others() -> None:
    audit = advantage_audit(group(member(1), member(0), member(0)), leave_one_out=True)
    assert audit.advantages == [1.0, -0.5, -0.5]
    assert [one.baseline for one in audit.members] == [0.0, 0.5, 0.5]


def test_single_voting_member_does_not_train_with_leave_one_out() -> None:
    audit = advantage_audit(group(member(1), member(0, failure="x")), leave_one_out=True)
    assert audit.advantages == [0.0, 0.0] and not audit.members[0].trains
    assert "nothing to compare" in audit.members[0].reason


def test_without_voting_members_there_is_no_baseline_and_no_training() -> None:
    audit = advantage_audit(group(member(0, failure="x"), member(0, FLAG_ON_TOP)))
    assert audit.baseline is None and audit.std is None and audit.advantages == [0.0, 0.0]
    assert "baseline none" in audit.lines()[0]


def test_normalized_advantages_are_divided_by_the_deviation_unless_it_is_zero() -> None:
    audit = advantage_audit(group(member(1), member(0), member(0), member(1)), normalize=True)
    assert audit.advantages[0] == pytest.approx(0.5 / 0.57735, abs=1e-4)
    assert advantage_audit(group(member(1), member(1)), normalize=True).advantages == [0.0, 0.0]


def test_audit_lists_absent_members_with_the_reason() -> None:
    record = group(member(1), member(0))
    record.completions[1].generation_index = 2
    record.failures = {1: "GenerationUnavailable: gone"}
    audit = advantage_audit(record)
    assert [one.index for one in audit.members] == [0, 2]
    assert audit.absent == {1: "GenerationUnavailable: gone"}
    assert audit.lines()[-1] == "  1: absent, GenerationUnavailable: gone"


MEMBERS = st.lists(
    st.builds(
        member,
        st.floats(-10, 10),
        st.sampled_from([None, {}, FLAG_IN_CONFIG, FLAG_ON_TOP]),
        st.sampled_from([None, None, "failed"]),
    ),
    max_size=8,
)


@given(MEMBERS, st.booleans())
def test_reward_of_a_masked_member_changes_no_advantage(members: list[Completion], normalize: bool) -> None:
    before = advantage_audit(group(*members), normalize=normalize)
    changed = [
        one if mask_reason(one) is None else member(1e3, one.env_extras, one.failure) for one in members
    ]
    assert advantage_audit(group(*changed), normalize=normalize).advantages == before.advantages
    assert math.isclose(math.fsum(before.advantages), 0, abs_tol=1e-6 if not normalize else 1e-3)
