"""Batches for trainers, compared with the message logs they are built from."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_rl.experience.adapters import Advantages, nemo_rl_batch, to_dataset, trl_batch, verl_batch
from nemo_rl.experience.integrity import advantage_audit, mask_reason
from nemo_rl.experience.interfaces import Completion, GroupIntegrity, PromptGroupRecord
from nemo_rl.experience.message_log import flat_token_ids
from nemo_rl.experience.train_batch import records_to_train_batch

pytestmark = pytest.mark.torch

PAD = 0
"""Generated examples never contain this token, so padding can be recognised."""


def message(role: str, token_ids: Sequence[int], logprobs: Sequence[float] | None = None) -> dict[str, Any]:
    text = " ".join(map(str, token_ids))
    message: dict[str, Any] = {"role": role, "content": text, "token_ids": torch.tensor(token_ids).long()}
    if logprobs is not None:
        message["generation_logprobs"] = torch.tensor(logprobs, dtype=torch.float32)
    return message


tokens = st.lists(st.integers(1, 50), max_size=4)
floats = st.floats(-8, 0, width=32)


@st.composite
def sampled(draw: st.DrawFn) -> dict[str, Any]:
    pairs = draw(st.lists(st.tuples(st.integers(1, 50), floats), max_size=4))
    return message("assistant", [token for token, _ in pairs], [logprob for _, logprob in pairs])


observed = st.builds(message, st.sampled_from(["environment", "user", "tool"]), tokens)
unsampled = st.builds(message, st.just("assistant"), tokens)
prompts = st.lists(observed | unsampled, min_size=1, max_size=3)
turns = st.lists(sampled() | observed | unsampled, max_size=4)
extras = st.sampled_from([None, {}, {"mask_sample": True}, {"instance_config": {"mask_sample": True}}])
rewards = st.floats(-2, 2, width=16)


@st.composite
def groups(draw: st.DrawFn) -> PromptGroupRecord:
    prompt = draw(prompts)
    indices = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(sorted))
    completions = []
    for index in indices:
        if draw(st.integers(0, 5)) == 0:
            completions.append(Completion(list(prompt), None, False, 0.0, 0, None, index, "Failed: it did"))
        else:
            log = [*prompt, *draw(turns)]
            reward, flags = draw(rewards), draw(extras)
            completions.append(Completion(log, flags, draw(st.booleans()), reward, 0, None, index))
    integrity = GroupIntegrity("mask", legacy_baseline=draw(st.booleans()))
    versions = draw(st.none() | st.tuples(st.integers(0, 3), st.integers(3, 5)))
    return PromptGroupRecord(
        draw(st.integers(0, 3)), prompt, None, {"task_name": "toy"}, completions, {}, integrity, {}, versions
    )


batches = st.lists(groups(), min_size=1, max_size=3)
option_sets = st.builds(Advantages, st.booleans(), st.booleans())
quick = settings(max_examples=40, deadline=None)


@dataclass
class Expected:
    """The expected values of a member, computed message by message."""

    prompt: list[int]
    rest: list[int]
    is_trained: list[int]
    """For each token of the rest: 1 if it was sampled by a member that trains."""
    logprobs: list[float]
    """For each token of the rest."""
    reward: float
    advantage: float
    has_weight: bool


def expected(records: Sequence[PromptGroupRecord], options: Advantages) -> list[Expected]:
    members = []
    for record in records:
        audit = advantage_audit(record, leave_one_out=options.leave_one_out, normalize=options.normalize)
        for completion, member in zip(record.completions, audit.members, strict=True):
            one = Expected([], [], [], [], completion.reward, member.advantage, member.trains)
            for message in record.prompt:
                one.prompt += message["token_ids"].tolist()
            for message in completion.message_log[len(record.prompt) :]:
                token_ids, logprobs = message["token_ids"].tolist(), message.get("generation_logprobs")
                one.rest += token_ids
                one.is_trained += [int(logprobs is not None and member.trains)] * len(token_ids)
                one.logprobs += [0.0] * len(token_ids) if logprobs is None else logprobs.tolist()
            members.append(one)
    return members


def right(values: Sequence[Sequence[Any]], pad: Any) -> list[list[Any]]:
    width = max(1, max(map(len, values)))
    return [[*row, *[pad] * (width - len(row))] for row in values]


def left(values: Sequence[Sequence[Any]], pad: Any) -> list[list[Any]]:
    width = max(map(len, values))
    return [[*[pad] * (width - len(row)), *row] for row in values]


def float32(values: Sequence[float]) -> list[float]:
    return torch.tensor(values, dtype=torch.float32).tolist()


@quick
@given(batches, option_sets)
def test_trl_gets_each_sampled_token_with_its_log_probability(
    records: list[PromptGroupRecord], options: Advantages
) -> None:
    batch, rows = trl_batch(records, PAD, options), expected(records, options)
    assert batch["prompt_ids"].tolist() == left([row.prompt for row in rows], PAD)
    assert batch["prompt_mask"].tolist() == left([[1] * len(row.prompt) for row in rows], 0)
    assert batch["completion_ids"].tolist() == right([row.rest for row in rows], PAD)
    assert batch["completion_mask"].tolist() == right([[1] * len(row.rest) for row in rows], 0)
    assert batch["tool_mask"].tolist() == right([row.is_trained for row in rows], 0)
    assert batch["sampling_per_token_logps"].tolist() == right([row.logprobs for row in rows], 0.0)
    assert batch["advantages"].tolist() == float32([row.advantage for row in rows])
    assert batch["num_items_in_batch"] == sum(sum(row.is_trained) for row in rows)


@quick
@given(batches, option_sets)
def test_verl_gets_each_sampled_token_with_its_log_probability(
    records: list[PromptGroupRecord], options: Advantages
) -> None:
    batch, rows = verl_batch(records, PAD, options), expected(records, options)
    prompts, responses = left([row.prompt for row in rows], PAD), right([row.rest for row in rows], PAD)
    assert batch["prompts"].tolist() == prompts
    assert batch["responses"].tolist() == responses
    assert batch["input_ids"].tolist() == [a + b for a, b in zip(prompts, responses, strict=True)]
    assert batch["response_mask"].tolist() == right([row.is_trained for row in rows], 0)
    assert batch["rollout_log_probs"].tolist() == right([row.logprobs for row in rows], 0.0)
    for number, row in enumerate(rows):
        length = len(row.prompt) + len(row.rest)
        is_token = batch["attention_mask"][number].bool()
        assert batch["input_ids"][number][is_token].tolist() == row.prompt + row.rest
        assert batch["position_ids"][number][is_token].tolist() == list(range(length))
        is_trained = batch["response_mask"][number].bool()
        assert set(batch["advantages"][number][is_trained].tolist()) <= set(float32([row.advantage]))
        assert not batch["advantages"][number][~is_trained].any()


@quick
@given(batches)
def test_verl_rows_have_their_reward_at_the_last_token(records: list[PromptGroupRecord]) -> None:
    batch, rows = verl_batch(records, PAD), expected(records, Advantages())
    for name in ("rm_scores", "token_level_scores", "token_level_rewards"):
        assert batch[name].sum(dim=1).tolist() == [row.reward for row in rows]
        for number, row in enumerate(rows):
            assert not batch[name][number, : max(0, len(row.rest) - 1)].any()
            assert not row.rest or not batch[name][number, len(row.rest) :].any()


@quick
@given(batches)
def test_verl_rows_have_one_id_per_group(records: list[PromptGroupRecord]) -> None:
    uid = verl_batch(records, PAD)["uid"]
    sizes = [len(record.completions) for record in records]
    assert uid.dtype == object and len(set(uid)) == len(records)
    start = 0
    for size in sizes:
        assert len(set(uid[start : start + size])) == 1
        start += size


@quick
@given(batches, option_sets)
def test_nemo_rl_gets_the_train_batch_with_advantages(
    records: list[PromptGroupRecord], options: Advantages
) -> None:
    batch, rows = nemo_rl_batch(records, {"token_ids": PAD}, options), expected(records, options)
    plain = records_to_train_batch(records, {"token_ids": PAD})
    assert batch.keys() - plain.keys() == {"advantages"}
    for key in plain.keys() - {"sample_mask"}:
        assert torch.equal(batch[key], plain[key])
    assert batch["advantages"].shape == batch["input_ids"].shape
    logs = [completion.message_log for record in records for completion in record.completions]
    for number, (row, log) in enumerate(zip(rows, logs, strict=True)):
        length = int(batch["input_lengths"][number])
        assert batch["input_ids"][number, :length].tolist() == flat_token_ids(log).tolist()
        assert batch["sample_mask"][number] == float(row.has_weight)
        trained = (batch["token_mask"][number] * batch["sample_mask"][number]).bool()
        assert trained[len(row.prompt) : length].tolist() == [bool(one) for one in row.is_trained]
        assert not trained[: len(row.prompt)].any() and not trained[length:].any()
        assert batch["generation_logprobs"][number, len(row.prompt) : length].tolist() == row.logprobs
        assert set(batch["advantages"][number][trained].tolist()) <= set(float32([row.advantage]))


@quick
@given(batches, option_sets)
def test_failed_and_flagged_members_have_no_weight_in_any_batch(
    records: list[PromptGroupRecord], options: Advantages
) -> None:
    completions = [completion for record in records for completion in record.completions]
    masked = [number for number, completion in enumerate(completions) if mask_reason(completion)]
    trl, verl = trl_batch(records, PAD, options), verl_batch(records, PAD, options)
    nemo_rl = nemo_rl_batch(records, None, options)
    for number in masked:
        assert not trl["tool_mask"][number].any() and not trl["advantages"][number]
        assert not verl["response_mask"][number].any() and not verl["advantages"][number].any()
        assert not nemo_rl["sample_mask"][number] and not nemo_rl["advantages"][number].any()


@quick
@given(batches, option_sets)
def test_dataset_has_one_row_per_completion_in_the_order_of_generation_indices(
    records: list[PromptGroupRecord], options: Advantages
) -> None:
    rows, wanted = list(to_dataset(records, options)), expected(records, options)
    keys = [(record.prompt_idx, one.generation_index) for record in records for one in record.completions]
    assert [(row["prompt_idx"], row["generation_index"]) for row in rows] == keys
    completions = [completion for record in records for completion in record.completions]
    audits = [member for record in records for member in options.audit(record).members]
    for row, one, completion, audit in zip(rows, wanted, completions, audits, strict=True):
        assert row["token_ids"] == one.prompt + one.rest and row["prompt_length"] == len(one.prompt)
        assert row["logprobs"] == [0.0] * len(one.prompt) + one.logprobs
        assert [bit * row["trains"] for bit in row["token_mask"]] == [0] * len(one.prompt) + one.is_trained
        assert (row["reward"], row["advantage"]) == (one.reward, one.advantage)
        assert row["baseline"] == audit.baseline
        assert (row["votes"], row["trains"], row["reason"]) == (audit.votes, audit.trains, audit.reason)
        assert row["truncated"] == completion.truncated
        assert row["messages"] == [
            {"role": message["role"], "content": message["content"]} for message in completion.message_log
        ]


def one_group(*completions: Completion, prompt_idx: int = 0, **more: Any) -> PromptGroupRecord:
    prompt = [message("user", [5, 6])]
    return PromptGroupRecord(prompt_idx, prompt, None, {"task_name": "toy"}, list(completions), {}, **more)


def completion_of(*token_ids: int, reward: float = 0.0, **more: Any) -> Completion:
    log = [message("user", [5, 6]), message("assistant", token_ids, [-0.5] * len(token_ids))]
    return Completion(log, None, False, reward, **more)


def test_dataset_is_unchanged_after_writing_and_reading_parquet(tmp_path: Path) -> None:
    records = [
        one_group(completion_of(7, 8, reward=1.0), completion_of(9, reward=0.0), weight_versions=(3, 4)),
        one_group(completion_of(7, reward=0.5), prompt_idx=1),
    ]
    made = to_dataset(records, Advantages(leave_one_out=True))
    made.to_parquet(tmp_path / "groups.parquet")
    read = datasets.Dataset.from_parquet(
        str(tmp_path / "groups.parquet"), cache_dir=str(tmp_path / "cache"), features=made.features
    )
    assert list(read) == list(made)
    first, second, alone = read
    assert (first["advantage"], second["advantage"], alone["advantage"]) == (1.0, -1.0, 0.0)
    assert (first["baseline"], second["baseline"], alone["baseline"]) == (0.0, 1.0, None)
    assert (alone["votes"], alone["trains"]) == (True, False)
    assert alone["reason"] == "alone: nothing to compare it with"
    assert (first["start_weight_version"], first["end_weight_version"]) == (3, 4)
    assert (alone["start_weight_version"], alone["end_weight_version"]) == (None, None)
    assert json.loads(first["metadata"]) == {"task_name": "toy"}


def test_advantages_are_normalized_on_request() -> None:
    records = [
        one_group(
            completion_of(7, reward=1.0), completion_of(8), completion_of(9), completion_of(10, reward=1.0)
        )
    ]
    std = 0.5773502691896257
    assert trl_batch(records, PAD)["advantages"].tolist() == [0.5, -0.5, -0.5, 0.5]
    normalized = trl_batch(records, PAD, Advantages(normalize=True))["advantages"].tolist()
    assert normalized == pytest.approx([0.5 / std, -0.5 / std, -0.5 / std, 0.5 / std])


def test_single_member_does_not_train_with_leave_one_out() -> None:
    records = [one_group(completion_of(7, reward=1.0))]
    alone = Advantages(leave_one_out=True)
    assert not trl_batch(records, PAD, alone)["tool_mask"].any()
    assert not verl_batch(records, PAD, alone)["response_mask"].any()
    assert nemo_rl_batch(records, None, alone)["sample_mask"].tolist() == [0.0]


@pytest.mark.parametrize("adapter", [trl_batch, verl_batch])
def test_member_whose_tokens_do_not_begin_with_the_prompt_is_refused(adapter: Any) -> None:
    stray = Completion(
        [message("user", [5, 7]), message("assistant", [8], [-0.5])], None, False, 0.0, 0, None, 4
    )
    short = Completion([message("user", [5])], None, False, 0.0, 0, None, 4)
    for other in (stray, short):
        with pytest.raises(ValueError, match=r"prompt_idx=2 generation_index=4: .* do not begin"):
            adapter([one_group(completion_of(7), other, prompt_idx=2)], PAD)


@pytest.mark.parametrize("adapter", [trl_batch, verl_batch])
def test_completions_without_tokens_still_have_one_column(adapter: Any) -> None:
    batch = adapter([one_group(completion_of(reward=1.0), completion_of())], PAD)
    names = {"completion_ids", "completion_mask", "tool_mask", "responses", "response_mask", "advantages"}
    assert {tuple(batch[name].shape) for name in names & batch.keys()} <= {(2, 1), (2,)}


@pytest.mark.parametrize("adapter", [trl_batch, verl_batch])
def test_one_warning_names_all_groups_without_log_probabilities(
    adapter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    without_logprobs = Completion([message("user", [5, 6]), message("assistant", [7])], None, False, 0.0)
    adapter([one_group(without_logprobs), one_group(without_logprobs)], PAD)
    assert len(caplog.records) == 1 and "2 of 2 groups cannot be trained on" in caplog.text


def test_every_field_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/train_on_rollouts.md").read_text()
    records = [one_group(completion_of(7), completion_of(8))]
    batches = (nemo_rl_batch(records), trl_batch(records, PAD), verl_batch(records, PAD))
    fields = {name for batch in batches for name in batch} | set(to_dataset(records).column_names)
    assert {name for name in fields if f"`{name}`" not in page} == set()


def test_error_for_a_missing_package_says_how_to_install_it() -> None:
    code = """
import sys
sys.modules["datasets"] = None
from nemo_rl.experience.adapters import to_dataset
try:
    to_dataset([])
except Exception as error:
    print(type(error).__name__, error)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("ConfigError to_dataset needs the package datasets")
    assert shown.strip().endswith("install it with: pip install datasets")


def test_adapters_can_be_imported_without_optional_packages() -> None:
    code = """
import sys
for name in ("torch", "transformers", "datasets"):
    sys.modules[name] = None
import nemo_rl.experience.adapters
"""
    subprocess.run([sys.executable, "-c", code], check=True)
