"""Messages for callers from Python.

Messages name settings as a command line does: `+agent_name=<name>`. Where a published function ends, this
module rewrites them: `agent_name="<name>"`. Errors of users end there, without the traceback of what they
passed through.
"""

import logging
import re
from types import TracebackType

from nemo_gym.errors import HeadServerUnreachableError, NeMoGymError

logger = logging.getLogger(__name__)

_SETTING = re.compile(
    r"(?P<command>\bng_\w+(?: (?:'[^']*'|\+\S+))+)|(?P<quote>'?)(?<![\w+])\+{1,2}(?P<name>[A-Za-z_][\w.]*)="
    r"""(?P<value><[^>]*>|\[[^\]]*\]|(?:[^\s,;:?'"()]*[^\s,;:?'"().])?)(?P=quote)"""
)
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_PHRASES = {
    "The same command with": "The same call with",
    "the same command with": "the same call with",
    "named by the command line": "passed to the call",
    "set each on the command line, ": "pass each in the overrides, ",
}
_CONSTANTS = {"true": "True", "false": "False", "null": "None", "": ""}
_MAPPINGS = ("responses_create_params", "num_repeats")
"""Settings whose parts are the items of a dictionary."""
_OPEN = (
    'use "async with nemo_gym.open_servers(…)" around the call, or start the servers with ng_run (at another '
    "address: head_server_config=BaseServerConfig(host=…, port=…))"
)


def in_python(text: str) -> str:
    """The text with settings as Python writes them."""
    text = _SETTING.sub(_as_python, text)
    for phrase, in_a_call in _PHRASES.items():
        text = text.replace(phrase, in_a_call)
    return text


class errors_in_python:  # used like a function
    """A block in which errors that users can cause are rewritten; their cause is logged for debugging only.

    Not a generator: `contextlib` would restore the traceback.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, NeMoGymError):
            logger.debug("%s", error, exc_info=error)
            _rewrite(error)
            raise error.with_traceback(None) from None


def _rewrite(error: NeMoGymError) -> None:
    if not error.args or str(error) != error.args[0]:
        return  # a message of its own
    text = str(error)
    if isinstance(error, HeadServerUnreachableError) and "open_servers" not in text:
        text = f"{text.partition(';')[0]}; {_OPEN}"
    error.args = (in_python(text), *error.args[1:])


def _as_python(match: re.Match[str]) -> str:
    if match["command"]:  # to be pasted into a shell
        return match[0]
    name, value = match["name"], _value(match["value"])
    first, _, rest = name.partition(".")
    if not rest:
        return f"{name}={value}" if value else name
    if first in _MAPPINGS:
        return f'{first}={{"{rest}": {value}}}'
    return f'"{name}": {value}'


def _value(text: str) -> str:
    if text in _CONSTANTS or text == "…" or _NUMBER.fullmatch(text) or text.startswith("["):
        return _CONSTANTS.get(text, text)
    return f'"{text}"'
