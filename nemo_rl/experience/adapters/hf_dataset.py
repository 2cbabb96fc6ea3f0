"""Groups as a Hugging Face dataset: one unpadded row per completion, with the audit of its advantage."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nemo_gym.errors import ConfigError
from nemo_rl.experience.adapters.rows import MEAN_OF_GROUP, Advantages, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nemo_rl.data.interfaces import LLMMessageLogType
    from nemo_rl.experience.adapters.rows import Row
    from nemo_rl.experience.interfaces import PromptGroupRecord


def to_dataset(records: Sequence[PromptGroupRecord], advantages: Advantages = MEAN_OF_GROUP) -> Any:
    """A `datasets.Dataset`; needs `pip install datasets`."""
    datasets = _load_datasets()
    rows = [_columns(row) for row in rows_of(records, advantages)]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return datasets.Dataset.from_dict(columns, features=_features(datasets))


def _features(datasets: Any) -> Any:
    """The types of all columns. They are explicit because types cannot be inferred from a column of nulls."""

    def value(dtype: str) -> Any:
        return datasets.Value(dtype)

    return datasets.Features(
        prompt_idx=value("int64"),
        generation_index=value("int64"),
        prompt_length=value("int64"),
        token_ids=[value("int64")],
        token_mask=[value("int8")],
        logprobs=[value("float32")],
        reward=value("float64"),
        advantage=value("float64"),
        baseline=value("float64"),
        votes=value("bool"),
        trains=value("bool"),
        reason=value("string"),
        truncated=value("bool"),
        messages=[{"role": value("string"), "content": value("string")}],
        start_weight_version=value("int64"),
        end_weight_version=value("int64"),
        metadata=value("string"),
    )


def _columns(row: Row) -> dict[str, Any]:
    record, audit = row.record, row.audit
    began, ended = record.weight_versions or (None, None)
    return {
        "prompt_idx": record.prompt_idx,
        "generation_index": audit.index,
        "prompt_length": row.prompt_length,
        "token_ids": row.sequence.token_ids.tolist(),
        "token_mask": row.sequence.mask.tolist(),
        "logprobs": row.sequence.logprobs.tolist(),
        "reward": audit.reward,
        "advantage": audit.advantage,
        "baseline": audit.baseline,
        "votes": audit.votes,
        "trains": audit.trains,
        "reason": audit.reason,
        "truncated": row.completion.truncated,
        "messages": _messages(row.completion.message_log),
        "start_weight_version": began,
        "end_weight_version": ended,
        "metadata": json.dumps(record.metadata, default=str),
    }


def _messages(message_log: LLMMessageLogType) -> list[dict[str, str]]:
    return [
        {"role": message["role"], "content": _text(message.get("content", ""))} for message in message_log
    ]


def _text(content: Any) -> str:
    """The content as text; content that has several parts as JSON."""
    return content if isinstance(content, str) else json.dumps(content, default=str)


def _load_datasets() -> Any:
    """Import `datasets`, which no extra installs."""
    try:
        return import_module("datasets")
    except ImportError as error:
        raise ConfigError(
            f"to_dataset needs the package datasets, which cannot be imported ({error}); "
            "install it with: pip install datasets"
        ) from error
