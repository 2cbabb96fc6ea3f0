"""Secrets: which values are secret, and how they are hidden in all that is shown, served or stored."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nemo_gym.config.plain_data import plain_data
from nemo_gym.config_types import is_server_ref

MASK = "****"

_SUFFIXES = ("api_key", "apikey", "token", "secret", "password", "authorization")
_SHORTEST = 6
"""A shorter text is a placeholder (`EMPTY`, `none`), and might be part of ordinary words."""
_URL_USER = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)([^/\s\"'<>?#]*)@")
_URL_QUERY = re.compile(r"([?&][\w-]*(?:key|token|secret|password)=)([^&\s\"'#]+)", re.IGNORECASE)


def is_secret_key(key: object) -> bool:
    return isinstance(key, str) and key.replace("-", "_").lower().endswith(_SUFFIXES)


def mask_secrets(values: Any) -> Any:
    """The same data with `****` for every secret, also if its text occurs under another key."""
    plain = plain_data(values)
    return _masked(plain, _ordered(secret_values(plain)))


def secret_values(values: Any) -> frozenset[str]:
    """The texts that must not be shown."""
    return frozenset(text for text in _found(plain_data(values), secret=False) if len(text) >= _SHORTEST)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without these secrets and without credentials in URLs."""
    return _redacted(text, _ordered(secrets))


def _ordered(secrets: Iterable[str]) -> list[str]:
    """Longest first, so that a secret that contains another is replaced as a whole."""
    return sorted(secrets, key=len, reverse=True)


def _redacted(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    if "://" in text:
        text = _URL_USER.sub(rf"\1{MASK}@", text)
        text = _URL_QUERY.sub(rf"\1{MASK}", text)
    return text


def _masked(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, Mapping):
        if is_server_ref(value):
            return dict(value)
        return {
            key: _hidden(item) if is_secret_key(key) else _masked(item, secrets)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_masked(item, secrets) for item in value]
    return _redacted(value, secrets) if isinstance(value, str) else value


def _hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item) for item in value]
    return value if value is None or value == "" or isinstance(value, bool) else MASK


def _found(value: Any, secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _found(item, secret or is_secret_key(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _found(item, secret)
    elif secret and value is not None and not isinstance(value, bool):
        # Also each line of a text block, and the token in `Bearer <token>`.
        yield str(value)
        for line in str(value).split("\n"):
            yield from (line.strip(), line.split(" ")[-1].strip())
    elif isinstance(value, str) and "://" in value:
        yield from (user.partition(":")[2] for _, user in _URL_USER.findall(value))
        yield from (text for _, text in _URL_QUERY.findall(value))
