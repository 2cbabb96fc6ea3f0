from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.config import mask_secrets, redact, secret_values

SECRET = "sk-5Tq9XzQ"


@pytest.mark.parametrize(
    "key",
    [
        "policy_api_key",
        "api_key",
        "API_KEY",
        "x-api-key",
        "hf_token",
        "Token",
        "client_secret",
        "db_password",
        "Authorization",
        "authorization",
        "Proxy-Authorization",
    ],
)
def test_secret_keys_are_masked_at_any_depth(key: str) -> None:
    values = {"a": [{key: SECRET}], key: {"deep": [SECRET, 7]}}
    assert mask_secrets(values) == {"a": [{key: "****"}], key: {"deep": ["****", "****"]}}


def test_other_keys_empty_values_and_flags_stay() -> None:
    values = {"api_key": None, "token": "", "use_token": True, "max_tokens": 5, "key": "x", "token_ids": [1]}
    assert mask_secrets(values) == values


def test_credentials_in_urls_are_masked() -> None:
    values = {
        "a": "http://user:p@ss/word@host/x",
        "b": "git+https://tok123@host",
        "c": "http://h/?api_key=abc&x=1",
    }
    assert mask_secrets(values)["a"].startswith("http://****@")
    assert mask_secrets(values)["b"] == "git+https://****@host"
    assert mask_secrets(values)["c"] == "http://h/?api_key=****&x=1"
    assert mask_secrets({"url": "http://host:80/a@b"}) == {"url": "http://host:80/a@b"}


def test_known_secret_is_masked_in_other_texts_but_not_in_references() -> None:
    ref = {"type": "responses_api_models", "name": "policy_model"}
    values = {"api_key": "policy", "command": "run --key policy", "model_server": ref}
    assert mask_secrets(values) == {"api_key": "****", "command": "run --key ****", "model_server": ref}


def test_secret_values_are_long_enough_to_be_secrets() -> None:
    values = {"api_key": SECRET, "token": "EMPTY", "password": 12345678, "x": "abcdefgh"}
    assert secret_values(values) == {SECRET, "12345678"}
    assert secret_values({"Authorization": f"Bearer {SECRET}"}) == {f"Bearer {SECRET}", SECRET}
    assert secret_values({"url": f"http://me:{SECRET}@host"}) == {SECRET}


def test_free_text_is_redacted() -> None:
    text = f"401 for {SECRET} at http://me:{SECRET}@host, {SECRET}x"
    assert redact(text, {SECRET}) == "401 for **** at http://****@host, ****x"
    assert redact("nothing here", {SECRET}) == "nothing here"
    assert redact("abcdefgh abcdef", {"abcdef", "abcdefgh"}) == "**** ****"


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_in(item)
    elif isinstance(value, str):
        yield value


KEYS = st.sampled_from(["policy_api_key", "hf_token", "x-secret", "Password", "Authorization"])
PLAIN_KEYS = st.sampled_from(["a", "b", "command", "headers"])
LEAVES = st.none() | st.integers() | st.text(max_size=5)


@given(
    st.recursive(
        LEAVES, lambda below: st.lists(below, max_size=3) | st.dictionaries(PLAIN_KEYS, below), max_leaves=8
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="*"), min_size=6, max_size=20),
    KEYS,
    st.text(max_size=5),
)
def test_masking_never_leaks_a_secret(tree: Any, secret: str, key: str, around: str) -> None:
    values = {"deep": [tree, {key: secret}], "elsewhere": f"{around}{secret}{around}", key: [secret]}
    masked = mask_secrets(values)
    assert not any(secret in text for text in texts_in(masked))
    assert masked["deep"][1] == {key: "****"}


def test_dictconfigs_are_masked() -> None:
    values = OmegaConf.create({"headers": [{"api_key": SECRET}]})
    assert mask_secrets(values) == {"headers": [{"api_key": "****"}]}
    assert secret_values(values) == {SECRET}


def test_secret_in_a_text_block_is_found_line_by_line() -> None:
    secrets = secret_values({"policy_api_key": "sk-abcdef123456\n", "my_secret": "first-line\nsecond-line\n"})
    redacted = redact("sk-abcdef123456, first-line and second-line", secrets)
    assert redacted == "****, **** and ****"
