"""Errors of the converters. Each names the place in the data."""

from nemo_gym.errors import InputError, NeMoGymError


class FormatError(NeMoGymError, ValueError):
    """Data of one API that has no equivalent in the other."""

    def __init__(self, problem: str, where: str = "") -> None:
        super().__init__(f"{where}: {problem}" if where else problem)
        self.problem = problem
        self.where = where

    def within(self, outer: str) -> "FormatError":
        """The same problem, with `outer` prepended to its path."""
        return FormatError(self.problem, f"{outer}.{self.where}" if self.where else outer)


class RequestFormatError(FormatError, InputError):
    """A request that cannot be converted; the caller has to change it."""


class ResponseFormatError(FormatError):
    """An endpoint's response that cannot be read: a failure of the endpoint, reported as a 502."""
