"""The umbrella `ng` and the `ng_*` entry points. Loads a command's module only when that command runs."""

import gc
import os
import sys
from importlib import import_module
from io import TextIOWrapper

from nemo_gym.cli.name_conflict import warn_of_other_distribution

COMMANDS = {
    "run": "Start every server of a configuration, each in a process of its own",
    "status": "Show running servers and collections, and what their rollouts wait for",
    "validate": "Check a configuration and its components without starting anything",
    "dump_config": "Show the merged configuration, secrets hidden",
    "collect_rollouts": "Play every row of an input file and keep the scored rollouts",
    "aggregate_rollouts": "Merge rollouts collected in several files and compute their metrics",
    "reward_profile": "Profile the rewards of each task",
    "compare": "Compare two runs task by task",
    "token_report": "Check whether the tokens of a rollouts file can be trained on",
    "export": "Turn a rollouts file into Parquet, or into JSONL in the older form",
    "materialize_prompts": "Fill a prompt template from each row of a JSONL file",
    "fetch_model": "Fetch the weights of the local model into the cache",
    "init_resources_server": "Write the skeleton of a new environment",
    "test": "Run the tests of a component",
    "version": "Show the versions of the package and what it stands on",
}


def main() -> None:
    """`ng <command> …`."""
    _write_any_text()
    warn_of_other_distribution()
    arguments = sys.argv[1:]
    name = arguments[0].replace("-", "_") if arguments else "--help"
    if name in ("__help", "_h", "--help", "help"):
        print(overview())
    elif name in ("__version", "_V"):
        enter("version", arguments[1:])
    elif name.removeprefix("ng_") in COMMANDS:
        enter(name.removeprefix("ng_"), arguments[1:])
    else:
        from difflib import get_close_matches

        close = get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean `ng {close[0]}`?" if close else "`ng --help` lists the commands"
        sys.exit(_complain(f"ng: there is no command {arguments[0]!r}; {hint}"))


def overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "Rollout collection for reinforcement learning and evaluation of LLM agents.",
            "",
            "usage: ng <command> [+key=value | --key value] …    (each is also a command: ng_<command>)",
            "",
            *lines,
            "",
            "ng <command> --help shows what a command takes.",
        ]
    )


def enter(name: str, arguments: list[str]) -> None:
    """Run one command; what a user can cause ends with one message and an exit code, never a traceback."""
    from nemo_gym.errors import NeMoGymError

    _write_any_text()
    warn_of_other_distribution()
    try:
        gc.disable()  # what is loaded stays: to look for garbage in it would be a tenth of the start
        command = import_module(f"nemo_gym.cli.{name}").COMMAND
        gc.enable()
        exit_code = command.main(arguments)
        sys.stdout.flush()
        sys.exit(exit_code)
    except NeMoGymError as error:
        sys.exit(_complain(f"{type(error).__name__}: {error}", error.exit_code))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        discard_output()
        sys.exit(0)


def discard_output() -> None:
    """Whoever read our output has had enough: from now on it goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_any_text() -> None:
    """A terminal that cannot show a character shows a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _complain(message: str, exit_code: int = 2) -> int:
    print(message, file=sys.stderr)
    return exit_code


def ng_run() -> None:
    enter("run", sys.argv[1:])


def ng_status() -> None:
    enter("status", sys.argv[1:])


def ng_validate() -> None:
    enter("validate", sys.argv[1:])


def ng_dump_config() -> None:
    enter("dump_config", sys.argv[1:])


def ng_collect_rollouts() -> None:
    enter("collect_rollouts", sys.argv[1:])


def ng_aggregate_rollouts() -> None:
    enter("aggregate_rollouts", sys.argv[1:])


def ng_reward_profile() -> None:
    enter("reward_profile", sys.argv[1:])


def ng_compare() -> None:
    enter("compare", sys.argv[1:])


def ng_token_report() -> None:
    enter("token_report", sys.argv[1:])


def ng_export() -> None:
    enter("export", sys.argv[1:])


def ng_materialize_prompts() -> None:
    enter("materialize_prompts", sys.argv[1:])


def ng_fetch_model() -> None:
    enter("fetch_model", sys.argv[1:])


def ng_init_resources_server() -> None:
    enter("init_resources_server", sys.argv[1:])


def ng_test() -> None:
    enter("test", sys.argv[1:])


def ng_version() -> None:
    enter("version", sys.argv[1:])
