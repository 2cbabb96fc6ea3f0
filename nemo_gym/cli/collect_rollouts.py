"""`ng_collect_rollouts`."""

import asyncio
import json
import logging
import signal
import sys
from contextlib import suppress
from itertools import count

import uvloop

from nemo_gym.cli.command import Command, ConfigPaths
from nemo_gym.cli.main import discard_output
from nemo_gym.config import GymConfig, mask_secrets
from nemo_gym.errors import NeMoGymError
from nemo_gym.launch.leave import Leaving
from nemo_gym.launch.limits import collect_garbage_less
from nemo_gym.path_utils import aggregate_metrics_path_for, failures_path_for, manifest_path_for
from nemo_gym.rollout_collection.collection import Collected, Collection
from nemo_gym.rollout_collection.config import RolloutCollectionConfig
from nemo_gym.rollout_collection.display import Display
from nemo_gym.rollout_collection.materialize import materialize
from nemo_gym.rollout_collection.servers import choose_servers

_CHARACTERS_A_TOKEN = 4
"""Of English text, roughly."""
_LEAVE_S = 2.0
"""How long code of environments that goes on may keep a process whose work is done."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_RESUME = "The same command with +resume_from_cache=true runs what is missing."


class CollectRolloutsConfig(RolloutCollectionConfig, ConfigPaths):
    pass


def run(config: GymConfig, options: CollectRolloutsConfig) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    if options.dry_run:
        return _dry_run(options)
    collect_garbage_less()
    leaving = Leaving()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        return uvloop.run(_collect(config, options, leaving))
    finally:
        leaving.done()
        for number, handler in handlers.items():
            signal.signal(number, handler)


async def _collect(config: GymConfig, options: CollectRolloutsConfig, leaving: Leaving) -> int:
    servers = choose_servers(config, options.hosting)
    collection = Collection(options, servers, Display(sys.stderr))
    _obey_signals(collection, leaving)
    try:
        collected = await collection.run()
    except NeMoGymError as error:
        leaving.within(_LEAVE_S, error.exit_code, f"{type(error).__name__}: {error}\n")
        raise
    try:
        _report(collected, options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has had enough; the exit code still tells
        discard_output()
    exit_code = 0 if collected.ledger.is_complete else 1
    leaving.within(_LEAVE_S, exit_code)
    return exit_code


def _obey_signals(collection: Collection, leaving: Leaving) -> None:
    """The first signal stops the collection in good order; the next leaves, whatever goes on.

    The handlers are Python's own: an event loop's have to wait for it, and an environment may block it.
    """
    loop = asyncio.get_running_loop()
    received = count(1)

    def obey(number: int, _: object) -> None:
        with suppress(RuntimeError):  # the event loop is closed: all is done
            loop.call_soon_threadsafe(_stop, collection, signal.Signals(number))
        if next(received) == 2:  # later ones do not put it off
            leaving.within(_LEAVE_S, 1, f"Left at once. {_RESUME}\n")

    for number in _SIGNALS:
        signal.signal(number, obey)


def _stop(collection: Collection, number: signal.Signals) -> None:
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    is_first = not collection.is_stopping
    collection.stop(name)
    told = "letting what runs finish for 5 s; once more leaves at once" if is_first else "leaving"
    print(f"\n{name}: {told}.", file=sys.stderr)


def _report(collected: Collected, options: CollectRolloutsConfig) -> None:
    ledger = collected.ledger
    if collected.key_metrics is not None:
        for agent, metrics in collected.key_metrics.items():
            print(f"Key metrics of {agent}:")
            print(json.dumps(metrics, indent=2))
    if collected.stopped_by is not None:
        print(f"Stopped early: {collected.stopped_by}.")
    print(f"Rollouts: {ledger}")
    for cause in ledger.worst():
        print(f"  {cause}")
    output = collected.output
    paths = {
        "Materialized inputs": options.materialized_jsonl_fpath,
        "Rollouts": output,
        "Failures": failures_path_for(output),
        "Aggregate metrics": aggregate_metrics_path_for(output),
        "Manifest": manifest_path_for(output),
    }
    for what, path in paths.items():
        if path.exists() and (what != "Aggregate metrics" or collected.key_metrics is not None):
            print(f"{what}: {path}")
    if not ledger.is_complete:
        left_alone = ledger.left_alone.total()
        again = _RESUME if ledger.succeeded + left_alone < ledger.planned else ""
        print(f"Not all rollouts succeeded. {again}".rstrip())


def _dry_run(options: CollectRolloutsConfig) -> int:
    plan = materialize(options, lambda line: None)
    row = json.loads(plan.sample)
    per_rollout = len(json.dumps(row["responses_create_params"])) / _CHARACTERS_A_TOKEN
    print(f"Dry run: {plan.num_rows} rows, {plan.planned} rollouts; nothing is started or written.")
    for agent, number in plan.by_agent.most_common():
        print(f"  {agent}: {number} rollouts")
    print("The first materialized row:")
    print(json.dumps(mask_secrets(row), indent=2, ensure_ascii=False))
    print(f"About {per_rollout * plan.planned:,.0f} input tokens for the first call of every rollout", end="")
    longest = row["responses_create_params"].get("max_output_tokens")
    print(f", at most {longest * plan.planned:,} output tokens a call" if isinstance(longest, int) else "")
    return 0


COMMAND = Command(
    "collect_rollouts",
    CollectRolloutsConfig,
    run,
    "ng_collect_rollouts '+config_paths=[resources_servers/calculator/configs/calculator.yaml,"
    "responses_api_models/openai_model/configs/openai_model.yaml]' "
    "+agent_name=calculator_simple_agent "
    "+input_jsonl_fpath=resources_servers/calculator/data/example.jsonl "
    "+output_jsonl_fpath=results/calculator.jsonl +num_repeats=4",
)
