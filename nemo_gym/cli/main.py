"""The entry point of `ng` and of all `ng_*`. The module of a command is loaded when that command runs."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

from nemo_gym.cli.name_conflict import warn_of_other_distribution
from nemo_gym.cli.output import complain, say

_PREFIX = "ng_"
COMMANDS = {
    "run": "Start every server of a configuration, each in its own process",
    "status": "Show running servers and collections, and what their rollouts are waiting for",
    "validate": "Check a configuration and its components without starting any server",
    "dump_config": "Show the merged configuration with secrets hidden",
    "collect_rollouts": "Play every row of an input file and write the scored rollouts",
    "aggregate_rollouts": "Merge rollouts from several files and compute their metrics",
    "reward_profile": "Profile the rewards of each task",
    "show": "Print rollouts: the worst, those that failed, those that call a tool",
    "compare": "Compare two runs task by task",
    "token_report": "Check whether the tokens in a rollouts file can be used for training",
    "export": "Convert a rollouts file to Parquet, or to JSONL in the older format",
    "materialize_prompts": "Fill a prompt template from each row of a JSONL file",
    "fetch_model": "Download the weights of the local model",
    "init_resources_server": "Create the files of a new environment",
    "init_agent": "Create the files of a new agent",
    "test": "Run the tests of a component",
    "version": "Show the versions of the package and its dependencies",
}


def main() -> None:
    """The entry point of `ng <command> …` and of every `ng_<command> …`: the program's name says which."""
    program, arguments = Path(sys.argv[0]).stem, sys.argv[1:]
    with _ending():
        if program.startswith(_PREFIX) and program.removeprefix(_PREFIX) in COMMANDS:
            enter(program.removeprefix(_PREFIX), arguments)
        _umbrella(arguments)


def _umbrella(arguments: list[str]) -> None:
    """`ng …`."""
    if len(arguments) > 1 and arguments[0] == "help":
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        say(overview())
    elif arguments[0] in ("--version", "-V"):
        enter("version", arguments[1:])
    else:
        enter(_command_name(arguments[0]), arguments[1:])


def _command_name(argument: str) -> str:
    name = argument.replace("-", "_").removeprefix(_PREFIX)
    if name in COMMANDS:
        return name
    from difflib import get_close_matches

    close = get_close_matches(name, COMMANDS, 1)
    hint = f"did you mean `ng {close[0]}`?" if close else "`ng --help` lists the commands"
    sys.exit(_complain(f"ng: unknown command {argument!r}; {hint}"))


def overview() -> str:
    # Padded here, because loading rich would double the time of this command.
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "Rollout collection for reinforcement learning and evaluation of LLM agents.",
            "",
            "usage: ng <command> [+key=value | --key value] …    (or: ng_<command> …)",
            "",
            *lines,
            "",
            "ng <command> --help (or ng help <command>) shows the settings of a command.",
        ]
    )


def enter(name: str, arguments: list[str]) -> None:
    """Run one command and exit. Errors that users can cause end with one message, never with a traceback."""
    with _ending():
        gc.disable()  # imported modules are not garbage: looking for some takes a tenth of the start-up time
        command = import_module(f"nemo_gym.cli.{name}").COMMAND
        gc.enable()
        exit_code = command.main(arguments)
        sys.stdout.flush()
        sys.exit(exit_code)


@contextmanager
def _ending() -> Iterator[None]:
    """The boundary of every command: what ends it becomes a message and an exit code."""
    from nemo_gym.errors import NeMoGymError

    _replace_unencodable()
    try:
        warn_of_other_distribution()
        yield
        sys.stdout.flush()
    except NeMoGymError as error:
        from nemo_gym.log_output import hidden, log_counts

        log_counts()
        sys.exit(_complain(hidden(f"{type(error).__name__}: {error}"), error.exit_code))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of standard output, or of standard error, has closed the pipe
        discard_output()
        sys.exit(0)


def discard_output() -> None:
    """Send the output to /dev/null from now on where its reader has closed the pipe."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _replace_unencodable() -> None:
    """Write a question mark for each character that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _complain(message: str, exit_code: int = 2) -> int:
    with suppress(BrokenPipeError):
        complain(message)
    return exit_code
