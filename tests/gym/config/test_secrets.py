import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

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
        "policy_api_keys",
        "aws_access_key",
        "aws_secret_access_key",
        "apiKey",
        "db_passwd",
        "password_of_db",
        "secrets",
        "extra_headers",
        "default-headers",
    ],
)
def test_secret_keys_are_masked_at_any_depth(key: str) -> None:
    values = {"a": [{key: SECRET}], key: {"deep": [SECRET, f"{SECRET}2"]}}
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
    basic = b64encode(f"me:{SECRET}".encode()).decode()
    assert secret_values({"url": f"http://me:{SECRET}@host"}) == {SECRET, basic, quote(basic)}


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


@pytest.mark.parametrize(
    "values",
    [
        {"max_output_tokens": 4096, "max_total_tokens": 100_000, "token_ids": [1, 2], "auth_token": 7},
        {"answer_key": "BCDAAC", "key": "abcdefgh", "tokenizer": "some/name", "num_secrets": 3},
        {"eos_token": "<|im_end|>", "pad_token": "<pad-token>"},
        {"responses_create_params": {"metadata": {"answer_key": "ABCDABCD", "topic": "fractions"}}},
        {"metadata": {"key_of_row": "row-17-of-all"}},
    ],
)
def test_what_only_looks_like_a_secret_stays(values: dict[str, Any]) -> None:
    assert mask_secrets(values) == values
    assert secret_values(values) == frozenset()


def test_every_value_of_a_headers_setting_is_masked_but_ordinary_ones_stay_in_other_texts() -> None:
    values = {
        "headers": {"X-Org": SECRET, "Content-Type": "application/json", "X-Many": [SECRET]},
        "text": f"{SECRET} as application/json",
    }
    assert mask_secrets(values) == {
        "headers": {"X-Org": "****", "Content-Type": "****", "X-Many": ["****"]},
        "text": "**** as application/json",
    }


def test_keys_in_the_metadata_of_requests_are_masked() -> None:
    row = {"responses_create_params": {"metadata": {"user_key_2": SECRET, "id": "a-plain-id"}}}
    assert mask_secrets(row)["responses_create_params"]["metadata"] == {
        "user_key_2": "****",
        "id": "a-plain-id",
    }
    assert secret_values(row) == {SECRET}


@pytest.mark.parametrize("common", ["none", "EMPTY", "x", "true", "dummy-key", "not-needed", "Placeholder"])
def test_a_placeholder_for_a_key_masks_no_ordinary_text(common: str) -> None:
    values = {"policy_api_key": common, "note": f"it is {common} here"}
    assert mask_secrets(values) == {"policy_api_key": "****", "note": f"it is {common} here"}


def test_credentials_of_a_url_are_hidden_in_every_form() -> None:
    password = "p@ss:w0rd/9"
    secrets = secret_values({"url": f"http://me:{quote(password, safe='')}@host/v1"})
    for form in (password, quote(password, safe=""), b64encode(f"me:{password}".encode()).decode()):
        assert redact(f"Authorization {form}", secrets) == "Authorization ****"


def test_password_of_a_basic_header_is_hidden_too() -> None:
    header = b64encode(f"me:{SECRET}".encode()).decode()
    secrets = secret_values({"headers": {"Authorization": f"Basic {header}"}})
    assert redact(f"{header} is {SECRET}", secrets) == "**** is ****"


def test_secret_is_hidden_as_it_occurs_in_json_and_in_a_repr() -> None:
    secret = 'qu"o\\te\n\u00fc-1'
    secrets = secret_values({"api_key": secret})
    for text in (
        secret,
        repr({"k": secret}),
        json.dumps({"k": secret}),
        json.dumps(secret, ensure_ascii=False),
    ):
        assert "te" not in redact(text, secrets)


def test_authorization_that_is_in_no_setting_is_hidden() -> None:
    assert redact("got Authorization: Bearer abcDEF123456") == "got Authorization: Bearer ****"
    assert redact("Bearer authentication is required") == "Bearer authentication is required"
