"""Probes: whether an undocumented API of the installed library behaves as needed."""

import logging
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from nemo_gym.environment_variables import forced_fallbacks

logger = logging.getLogger(__name__)


class Probe:
    """Checks one library, once per process, when the result is first needed.

    A failed check is logged and selects the documented API. `NEMO_GYM_FORCE_FALLBACK` makes checks fail.
    """

    def __init__(self, library: str, check: Callable[[], bool], distribution: str = "") -> None:
        """`check` returns whether the API behaves as needed; any exception means that it does not."""
        self.library = library
        self._distribution = distribution or library
        self._check = check
        self._passed: bool | None = None

    @property
    def passed(self) -> bool:
        if self._passed is None:
            self._passed = not is_forced(self.library) and self._passes()
        return self._passed

    def _passes(self) -> bool:
        reason: Exception | None = None
        try:
            if self._check():
                return True
        except Exception as error:  # the boundary to an API that may have changed in any way
            reason = error
        logger.warning(
            "%s %s is not supported by the fast path (%s); using its documented API, which is slower",
            self.library,
            _installed(self._distribution),
            "unexpected result" if reason is None else repr(reason),
        )
        return False


@cache
def is_forced(library: str) -> bool:
    """Whether `NEMO_GYM_FORCE_FALLBACK` names this library or all of them."""
    return bool({library, "all"} & forced_fallbacks())


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "(unknown version)"
