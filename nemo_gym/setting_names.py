"""Suggests the setting that an unknown name probably means."""

from collections.abc import Collection, Iterable

REQUEST_PARAMETERS = "responses_create_params"
"""The setting with the parameters of every request to a model."""

_NEAR_MISS = 0.78
_MOST = 3
_OTHER_NAMES = {
    "api_key": "policy_api_key",
    "base_url": "policy_base_url",
    "concurrency": "num_samples_in_parallel",
    "concurrent": "num_samples_in_parallel",
    "dataset": "input_jsonl_fpath",
    "endpoint": "policy_base_url",
    "input": "input_jsonl_fpath",
    "max_concurrency": "num_samples_in_parallel",
    "max_retries": "max_attempts",
    "max_workers": "num_workers",
    "model": "policy_model_name",
    "model_name": "policy_model_name",
    "n": "num_repeats",
    "num_samples": "limit",
    "output": "output_jsonl_fpath",
    "repeats": "num_repeats",
    "resume": "resume_from_cache",
    "retries": "max_attempts",
    "timeout": "rollout_timeout_s",
}
"""Names that other tools have for the same setting."""
_CHAT_NAMES = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}
"""Parameters that have another name in the Chat Completions API."""


def close_matches(name: str, candidates: Iterable[str], cutoff: float = 0.6) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name, list(candidates), n=_MOST, cutoff=cutoff)


def meant_settings(name: str, fields: Collection[str], others: Collection[str] = ()) -> list[str]:
    """The settings that a name may mean, the likeliest first. `fields` are the settings of the command or
    function; `others` are further names that it accepts."""
    other_name = _OTHER_NAMES.get(name)
    if other_name in fields or other_name in others:
        return [str(other_name)]
    if REQUEST_PARAMETERS in fields and (parameter := _request_parameter(name)):
        return [f"{REQUEST_PARAMETERS}.{parameter}"]
    return close_matches(name, {*fields, *others}, _NEAR_MISS)[:1] or _with_the_words_of(name, fields)


def meant_parameter(name: str, cutoff: float) -> str | None:
    """The parameter of the Responses API that another name means; None if it is one, or like none."""
    parameters = _parameters()
    if name in parameters:
        return None
    return _CHAT_NAMES.get(name) or next(iter(close_matches(name, parameters, cutoff)), None)


def _request_parameter(name: str) -> str | None:
    """The parameter with this name, also in the Chat Completions API."""
    return _CHAT_NAMES.get(name) or (name if name in _parameters() else None)


def _parameters() -> frozenset[str]:
    from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming as Params  # slow to load

    return frozenset({*Params.model_fields, *Params._rare})


def _with_the_words_of(name: str, fields: Collection[str]) -> list[str]:
    """The fields whose names contain every word of this one: `repeats` for `num_repeats`."""
    words = set(name.split("_"))
    return sorted((field for field in fields if words <= set(field.split("_"))), key=len)[:_MOST]
