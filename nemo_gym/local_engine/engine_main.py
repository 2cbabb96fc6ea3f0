"""The engine process: llama.cpp behind HTTP on loopback, until its standard input ends.

Started by `nemo_gym.local_engine.engine_process`, never by hand. The first line of the input is the settings,
as JSON; one line of the output is the address, or the error. The input ends when the parent process has died
or wants this one to stop; the parent first waits for running generations. Then this process exits at once,
without cleanup: the engine hangs if it is destroyed while it generates.
"""

import json
import os
import sys
import threading
import time
from typing import IO, Any

from nemo_gym.extras import load_extra

_LOG_WRITE_S = 0.2
"""Wait before exiting after a failed start: a thread of llama.cpp writes its log, and no call awaits it."""


def main() -> None:
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # llama.cpp's own prints go to the log
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        server = _start(settings)
    except Exception as error:  # the boundary to the engine: reported to the parent process
        _send(output, {"error": str(error) or type(error).__name__})
        time.sleep(_LOG_WRITE_S)
        os._exit(1)
    _send(output, {"address": server.listening_address})
    threading.Event().wait()


def _send(output: IO[str], message: dict[str, str]) -> None:
    output.write(json.dumps(message) + "\n")
    output.flush()


def _exit_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _start(settings: dict[str, Any]) -> Any:
    os.putenv("OMP_WAIT_POLICY", "passive")  # waiting threads must not occupy the cores
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
    # Each generation occupies one thread; rendering and tokenising must not wait for them.
    params.n_threads_http = 2 * settings["slots"] + 4
    params.use_jinja = True
    params.prefill_assistant = False  # a last assistant message is rendered like any other, not continued
    params.ctx_shift = False  # a full context ends the generation instead of dropping its beginning
    params.cache_ram_mib = 256  # prompt cache; the engine's default is 8 GB
    params.ui = False
    params.warmup = False
    params.verbosity = 1  # errors only
    if settings["chat_template"] is not None:
        params.chat_template = settings["chat_template"]
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
