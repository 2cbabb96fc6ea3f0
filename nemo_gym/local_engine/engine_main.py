"""The engine's own process: llama.cpp behind HTTP on loopback, until its standard input ends.

Started by `nemo_gym.local_engine.engine`, never by hand. The first line of the input is its settings, as
JSON; one line of the output says where it listens, or why it cannot. When the input ends, the process that
started it wants it gone or is gone itself, and it leaves at once: the engine hangs when it is torn down while
it generates, and whoever stops it has waited for that before.
"""

import json
import os
import sys
import threading
from typing import IO, Any

from nemo_gym.extras import load_extra


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine's own code prints is a log
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        server = _start(settings)
    except Exception as error:  # the boundary to the engine: told to whoever waits
        _say(answers, {"error": str(error) or type(error).__name__})
        os._exit(1)
    _say(answers, {"address": server.listening_address})
    threading.Event().wait()


def _say(answers: IO[str], answer: dict[str, str]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _leave_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _start(settings: dict[str, Any]) -> Any:
    os.putenv("OMP_WAIT_POLICY", "passive")  # threads that wait must not take the cores from the rest
    xllamacpp = load_extra("xllamacpp", "local", "local_model")
    params = xllamacpp.CommonParams()
    params.model.path = settings["model_path"]
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["slots"] * settings["context"]
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["prompt_threads"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["api_key"]]
    # A generation holds one of these for as long as it takes; renderings must not wait behind them.
    params.n_threads_http = 2 * settings["slots"] + 4
    params.use_jinja = True
    params.prefill_assistant = False  # a conversation that ends with the model's turn is rendered as it is
    params.ctx_shift = False  # a full context ends a generation instead of forgetting its beginning
    params.cache_ram_mib = 256  # prompts of slots that went to others; the engine's own default is 8 GB
    params.ui = False
    params.warmup = False
    params.verbosity = 1  # errors alone
    if settings["chat_template"] is not None:
        params.chat_template = settings["chat_template"]
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
