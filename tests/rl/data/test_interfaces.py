"""The types of a prompt and its message log."""

import typing

import pytest
import torch

from nemo_rl.data import interfaces
from nemo_rl.data.interfaces import DatumSpec, LLMMessageLogType, VLMMessageLogType

pytestmark = pytest.mark.torch


def value_types(message_log_type: object) -> set[object]:
    (message_type,) = typing.get_args(message_log_type)
    key_type, value_type = typing.get_args(message_type)
    assert (typing.get_origin(message_log_type), typing.get_origin(message_type)) == (list, dict)
    assert key_type is str
    return set(typing.get_args(value_type))


def test_messages_hold_strings_and_tensors_and_with_media_more_types() -> None:
    assert value_types(LLMMessageLogType) == {str, torch.Tensor}
    assert value_types(VLMMessageLogType) > {str, torch.Tensor}
    assert {"DatumSpec", "LLMMessageLogType", "VLMMessageLogType"} <= set(interfaces.__all__)


def test_only_task_name_and_stop_strings_of_a_prompt_are_optional() -> None:
    assert DatumSpec.__optional_keys__ == {"task_name", "stop_strings"}
    required = {"message_log", "length", "extra_env_info", "loss_multiplier", "idx"}
    assert DatumSpec.__required_keys__ == required


def test_type_hints_of_a_prompt_can_be_resolved() -> None:
    hints = typing.get_type_hints(DatumSpec)
    assert hints["message_log"] == LLMMessageLogType
    assert (hints["idx"], hints["loss_multiplier"], hints["task_name"]) == (int, float, str)
