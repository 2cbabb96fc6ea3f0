"""What the converters refuse: one error, which names the place."""

from nemo_gym.errors import InputError, NeMoGymError


class FormatError(NeMoGymError, ValueError):
    """Data of one API that the other API cannot say."""

    def __init__(self, problem: str, where: str = "") -> None:
        super().__init__(f"{where}: {problem}" if where else problem)
        self.problem = problem
        self.where = where

    def within(self, outer: str) -> "FormatError":
        """The same problem, seen from the object around it."""
        return FormatError(self.problem, f"{outer}.{self.where}" if self.where else outer)


class RequestFormatError(FormatError, InputError):
    """A request that cannot be converted: the caller has to change it."""


class AnswerFormatError(FormatError):
    """An answer that cannot be read: a failure of the endpoint, which a model server answers with a 502."""
