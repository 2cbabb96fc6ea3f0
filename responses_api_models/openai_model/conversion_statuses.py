"""Errors of the conversion between APIs as statuses for the caller."""

from types import TracebackType

from fastapi import HTTPException

from nemo_gym.responses_converter import RequestFormatError, ResponseFormatError


class _ConversionErrors:
    """400 for a request that cannot be converted, 502 for a response of the endpoint that cannot."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RequestFormatError):
            raise HTTPException(400, str(error)) from error
        if isinstance(error, ResponseFormatError):
            raise HTTPException(502, f"the endpoint's response cannot be read: {error}") from error


conversion_errors = _ConversionErrors()
