"""Fields for an endpoint that no API declares: those of a configuration and those of a row.

Order, from lowest to highest: the configured ones, the request itself, those in the metadata of the request.
"""

import json
from collections.abc import Mapping
from typing import Any

from .conversion_error import RequestFormatError

LENGTH_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Names of one limit: a request that has one of them replaces all."""

_EXTRA_BODY = "extra_body"
_TEMPLATE = "chat_template_kwargs"

Request = dict[str, Any]


def laid_over(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> Request:
    """A request with the fields of both; where they have the same one, that of `upper`."""
    if any(name in upper for name in LENGTH_FIELDS):
        lower = {name: value for name, value in lower.items() if name not in LENGTH_FIELDS}
    return {**lower, **upper}


def with_metadata_unpacked(request: Request) -> Request:
    """The request with the fields that `extra_body` and `chat_template_kwargs` in its metadata hold as JSON.

    The metadata of the Responses API has only texts as values. What is unpacked is removed from it.
    """
    metadata = request.get("metadata")
    if not isinstance(metadata, dict) or metadata.keys().isdisjoint((_EXTRA_BODY, _TEMPLATE)):
        return request
    extra, template = (_object(metadata, name) for name in (_EXTRA_BODY, _TEMPLATE))
    template = {**(request.get(_TEMPLATE) or {}), **(extra.get(_TEMPLATE) or {}), **template}
    unpacked = laid_over(extra, request) | ({_TEMPLATE: template} if template else {})
    rest = {name: value for name, value in metadata.items() if name not in (_EXTRA_BODY, _TEMPLATE)}
    if rest:
        unpacked["metadata"] = rest
    else:
        unpacked.pop("metadata")
    return unpacked


def _object(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = metadata.get(name)
    if value is None:
        return {}
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise RequestFormatError(f"metadata.{name} is not valid JSON ({error}): {value[:200]!r}") from error
    if not isinstance(found, dict):
        raise RequestFormatError(f"metadata.{name} must be a JSON object as text, not {str(value)[:200]!r}")
    return found
