"""What a prompt is to those who make and read it."""

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


def test_messages_hold_texts_and_tensors_and_with_media_something_more() -> None:
    assert value_types(LLMMessageLogType) == {str, torch.Tensor}
    assert value_types(VLMMessageLogType) > {str, torch.Tensor}
    assert {"DatumSpec", "LLMMessageLogType", "VLMMessageLogType"} <= set(interfaces.__all__)


def test_a_prompt_need_not_have_a_task_or_stop_strings_and_must_have_the_rest() -> None:
    assert DatumSpec.__optional_keys__ == {"task_name", "stop_strings"}
    required = {"message_log", "length", "extra_env_info", "loss_multiplier", "idx"}
    assert DatumSpec.__required_keys__ == required


def test_the_types_of_a_prompt_can_be_asked_for() -> None:
    hints = typing.get_type_hints(DatumSpec)
    assert hints["message_log"] == LLMMessageLogType
    assert (hints["idx"], hints["loss_multiplier"], hints["task_name"]) == (int, float, str)
