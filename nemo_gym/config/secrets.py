"""Secrets: which values are secret, and how they are hidden in all that is shown, served or stored.

The names of settings decide. Every consumer (manifest, logs, trackers, head server, …) asks this module.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from nemo_gym.config.plain_data import plain_data
from nemo_gym.config_types import is_server_ref

MASK = "****"

_KEY_ENDINGS = ("apikey", "apikeys", "accesskey", "accesskeyid", "authorization")
_KEY_PARTS = ("passwd", "password")
_TEXT_ENDING, _TEXT_PART = "token", "secret"
"""Names of which only texts are secret: `num_secrets: 3` is a number."""
_SPECIAL_TOKENS = tuple(f"{name}token" for name in ("bos", "eos", "pad", "unk", "sep", "cls", "mask", "stop"))
_HEADERS = "headers"
_METADATA_PATH = ("responses_create_params", "metadata")
_ANSWER_KEY = "answer_key"

_SHORTEST = 6
"""A shorter text is a placeholder (`EMPTY`, `none`), and might be part of ordinary words."""
_LONG_USER = 16
"""A user name in a URL without a password is a token if it is at least this long."""
_PLACEHOLDERS = {
    *(
        "bearer",
        "basic",
        "change-me",
        "change_me",
        "changeme",
        "default",
        "dummy-key",
        "dummy_key",
        "ignored",
    ),
    *("no-api-key", "no-key", "no_key", "not-needed", "not_needed", "not-used", "nothing", "password"),
    *("placeholder", "replace-me", "secret", "string", "unused", "your-api-key", "your_api_key"),
}
"""Texts that are hidden in their setting, but not in other texts."""
_PUBLIC_HEADERS = {
    *("accept", "accept-charset", "accept-encoding", "accept-language", "cache-control", "connection"),
    *("content-encoding", "content-length", "content-type", "host", "keep-alive", "origin", "referer"),
    *("user-agent",),
}
_URL_USER = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)([^/\s\"'<>?#]*)@")
_URL_QUERY = re.compile(
    r"([?&][\w-]*(?:key|token|secret|passwd|password|signature|sig)=)([^&\s\"'#]+)", re.IGNORECASE
)
_SCHEME = re.compile(r"\b(Bearer|Basic)( +)(?=[\w.~+/=-]*\d)[\w.~+/=-]{8,}", re.IGNORECASE)


def is_secret_key(key: object) -> bool:
    """Whether the name alone says that the texts of a setting are secret."""
    if not isinstance(key, str):
        return False
    name = _plain_name(key)
    return _holds_credentials(name) or (
        (name.endswith(_TEXT_ENDING) or _TEXT_PART in name) and not name.endswith(_SPECIAL_TOKENS)
    )


def is_secret_path(path: str) -> bool:
    """Whether the texts of the setting with this dotted key are secret."""
    return _is_secret(path.split("."))


def mask_secrets(values: Any) -> Any:
    """The same data with `****` for every secret, also if its text occurs under another key."""
    plain = plain_data(values)
    return _masked(plain, _ordered(secret_values(plain)), ())


def secret_values(values: Any) -> frozenset[str]:
    """The texts that must not be shown, in every form in which they may occur."""
    return frozenset(
        form
        for text in _found(plain_data(values), ())
        if len(text) >= _SHORTEST and text.lower() not in _PLACEHOLDERS
        for form in _forms(text)
    )


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without these secrets, and without credentials in URLs and authorization headers."""
    return _redacted(text, _ordered(secrets))


def _plain_name(key: str) -> str:
    return key.replace("-", "").replace("_", "").lower()


def _holds_credentials(name: str) -> bool:
    """Whether numbers are secret too: a password may consist of digits."""
    return name.endswith(_KEY_ENDINGS) or any(part in name for part in _KEY_PARTS)


def _is_secret(path: Sequence[object]) -> bool:
    return any(map(is_secret_key, path)) or _is_header(path) or _is_metadata_key(path)


def _is_header(path: Sequence[object]) -> bool:
    return any(isinstance(key, str) and key.lower().endswith(_HEADERS) for key in path)


def _is_metadata_key(path: Sequence[object]) -> bool:
    for parents, key in zip(pairwise(path), path[2:], strict=False):
        if parents == _METADATA_PATH and isinstance(key, str) and key != _ANSWER_KEY:
            return "key" in key.lower()
    return False


def _ordered(secrets: Iterable[str]) -> list[str]:
    """Longest first, so that a secret that contains another is replaced as a whole."""
    return sorted(secrets, key=len, reverse=True)


def _redacted(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    if "://" in text:
        text = _URL_USER.sub(rf"\1{MASK}@", text)
        text = _URL_QUERY.sub(rf"\1{MASK}", text)
    return _SCHEME.sub(rf"\1\2{MASK}", text)


def _masked(value: Any, secrets: list[str], path: tuple[object, ...]) -> Any:
    if isinstance(value, Mapping):
        if is_server_ref(value) and not _is_secret(path):
            return dict(value)
        return {key: _masked(item, secrets, (*path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, secrets, path) for item in value]
    if _is_secret_leaf(value, path):
        return MASK
    return _redacted(value, secrets) if isinstance(value, str) else value


def _is_secret_leaf(value: Any, path: Sequence[object]) -> bool:
    if isinstance(value, str):
        return value != "" and _is_secret(path)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return any(isinstance(key, str) and _holds_credentials(_plain_name(key)) for key in path)


def _found(value: Any, path: tuple[object, ...]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _found(item, (*path, key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _found(item, path)
    elif _is_secret_leaf(value, path):
        if not _is_public_header(path):
            yield from _parts(str(value))
    elif isinstance(value, str) and "://" in value:
        yield from _url_parts(value)


def _is_public_header(path: Sequence[object]) -> bool:
    """Whether a header has an ordinary value, such as `application/json`, that other texts contain too."""
    return _is_header(path[:-1]) and str(path[-1]).lower() in _PUBLIC_HEADERS


def _parts(text: str) -> Iterator[str]:
    """The text, each line of a block, the token in `Bearer <token>`, the password in `Basic <base64>`."""
    yield text
    for line in text.split("\n"):
        scheme, _, credentials = line.strip().rpartition(" ")
        yield from (line.strip(), credentials)
        if scheme.lower().endswith("basic"):
            yield from _decoded(credentials)
    yield from _url_parts(text)


def _decoded(credentials: str) -> Iterator[str]:
    try:
        text = b64decode(credentials, validate=True).decode()
    except ValueError:
        return
    yield from (text, text.partition(":")[2])


def _url_parts(text: str) -> Iterator[str]:
    """The secrets in the URLs of a text; also `user:password` as the header of a request contains it."""
    for _, user in _URL_USER.findall(text):
        name, colon, password = user.partition(":")
        if colon:
            yield from (password, unquote(password), _basic(user), _basic(unquote(user)))
        elif len(name) >= _LONG_USER:
            yield from (name, unquote(name), _basic(f"{name}:"), _basic(f"{unquote(name)}:"))
    yield from (value for _, found in _URL_QUERY.findall(text) for value in (found, unquote(found)))


def _basic(credentials: str) -> str:
    return b64encode(credentials.encode("utf-8", "surrogatepass")).decode()


def _forms(text: str) -> Iterator[str]:
    """The text as it is, and as it occurs in JSON, in a `repr` and in a URL."""
    data = text.encode("utf-8", "surrogatepass")
    yield from (text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    if " " not in text:  # else it is not a credential, but contains one
        yield from (quote(data), quote(data, safe=""), quote_plus(data))
