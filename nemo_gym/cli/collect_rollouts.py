"""`ng_collect_rollouts`."""

import asyncio
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from pydantic import Field

from nemo_gym.cli.command import Command, ConfigPaths
from nemo_gym.cli.main import discard_output
from nemo_gym.cli.output import complain, say, say_json
from nemo_gym.config import GymConfig, max_rollout_attempts
from nemo_gym.errors import ConfigError, NeMoGymError, WorkerError
from nemo_gym.event_loop import run_to_end
from nemo_gym.launch.leave import Leaving
from nemo_gym.launch.limits import collect_garbage_less
from nemo_gym.log_output import hidden, log_counts
from nemo_gym.rollout_collection.collection import Collection
from nemo_gym.rollout_collection.collection_policy import CollectionPolicy
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.display.dry_run import dry_run
from nemo_gym.rollout_collection.display.end_report import RESUME_HINT, report, report_data
from nemo_gym.rollout_collection.display.screen import Display
from nemo_gym.rollout_collection.run_servers import choose_servers, servers_in_sight
from nemo_gym.text_fit import Screen

_LEAVE_S = 2.0
"""How long the process waits for code of environments that is still running when the work is done."""
_RESULTS = Path("results")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class CollectRolloutsConfig(RolloutCollectionConfig, ConfigPaths):
    config_paths: list[str] = Field(default_factory=list)
    """YAML files that define the servers to host: `[a.yaml,b.yaml]`. Later files override earlier ones. Not
    needed if ng_run is running; its servers are then used. Relative paths are searched for like the input."""
    output_jsonl_fpath: str | None = None  # type: ignore[assignment]  # filled in by `run`
    """The file for the rollouts, one JSON object per line. The other files of the run are written beside
    it, and their names begin with its name. null: results/<name of the input>_<UTC time>.jsonl. Needed to
    resume."""
    json_output: bool = False
    """Print the result as one JSON object instead of text."""


def run(config: GymConfig, options: CollectRolloutsConfig) -> int:
    if options.output_jsonl_fpath is None:
        options = options.model_copy(update={"output_jsonl_fpath": str(_new_output(options))})
        complain(f"Output: {options.output_jsonl_fpath} (+output_jsonl_fpath= was not given)")
    if options.dry_run:
        return run_to_end(_dry_run(config, options))
    collect_garbage_less()
    leaving = Leaving()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        return run_to_end(_collect(config, options, leaving))
    except asyncio.CancelledError as error:
        raise WorkerError(
            "the code of an environment cancelled all tasks of this process, which ended the run; remove "
            f"that from its code, or use +executor=processes. {RESUME_HINT}"
        ) from error
    finally:
        leaving.done()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _new_output(options: CollectRolloutsConfig) -> Path:
    """A new output named after the input and the time."""
    stem = Path(options.input_jsonl_fpath).stem
    if options.resume_from_cache:
        earlier = sorted(path for path in _RESULTS.glob(f"{stem}_*Z.jsonl"))
        latest = f", such as {earlier[-1]}, the latest of this input" if earlier else ""
        raise ConfigError(
            "resume_from_cache needs the output of the run to resume: +output_jsonl_fpath=<path>" + latest
        )
    return _RESULTS / f"{stem}_{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"


async def _collect(config: GymConfig, options: CollectRolloutsConfig, leaving: Leaving) -> int:
    servers = choose_servers(config, options.hosting)
    display = Display(sys.stderr)
    collection = Collection(options, servers, display, _policy(config))
    _obey_signals(collection, display, leaving)
    try:
        collected = await collection.run()
        log_counts()
    except NeMoGymError as error:
        leaving.within(_LEAVE_S, error.exit_code, hidden(f"{type(error).__name__}: {error}\n"))
        raise
    try:
        if options.json_output:
            say_json(report_data(collected), flush=True)
        else:
            say("\n".join(report(collected, Screen.of(sys.stdout))), flush=True)
    except BrokenPipeError:  # the reader has closed the pipe; the exit code still reports the result
        discard_output()
    exit_code = 0 if collected.ledger.is_complete and not collected.warnings else 1
    leaving.within(_LEAVE_S, exit_code)
    return exit_code


async def _dry_run(config: GymConfig, options: CollectRolloutsConfig) -> int:
    say("\n".join(dry_run(options, servers_in_sight(config, options.hosting), _policy(config))))
    return 0


def _policy(config: GymConfig) -> CollectionPolicy:
    return CollectionPolicy(config.roots, max_rollout_attempts())


def _obey_signals(collection: Collection, display: Display, leaving: Leaving) -> None:
    """Stop the collection in good order at the first signal; exit at the second, whatever is running.

    These are handlers of the `signal` module. Those of an event loop run only when the loop is free, and an
    environment may block it.
    """
    loop = asyncio.get_running_loop()
    received = count(1)

    def obey(number: int, _: object) -> None:
        with suppress(RuntimeError):  # the event loop is closed: the work is done
            loop.call_soon_threadsafe(_stop, collection, display, signal.Signals(number))
        if next(received) == 2:  # further signals do not postpone the exit
            leaving.within(_LEAVE_S, 1, f"Stopped immediately. {RESUME_HINT}\n")

    for number in _SIGNALS:
        signal.signal(number, obey)


def _stop(collection: Collection, display: Display, number: signal.Signals) -> None:
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    is_first = not collection.is_stopping
    collection.stop(name)
    if is_first:
        grace = f"{collection.stop_grace_s:g} s"
        display.note(f"{name}: running rollouts get {grace} to finish; repeat to stop immediately.")
    else:
        display.note(f"{name}: stopping immediately.")


COMMAND = Command(
    "collect_rollouts",
    CollectRolloutsConfig,
    run,
    "ng_collect_rollouts '+config_paths=[resources_servers/calculator/configs/calculator.yaml,"
    "responses_api_models/openai_model/configs/openai_model.yaml]' "
    "+policy_base_url=http://127.0.0.1:8000/v1 +policy_api_key=none +policy_model_name=my-model "
    "+agent_name=calculator_simple_agent "
    "+input_jsonl_fpath=resources_servers/calculator/data/example.jsonl "
    "+output_jsonl_fpath=results/calculator.jsonl +num_repeats=4",
)
