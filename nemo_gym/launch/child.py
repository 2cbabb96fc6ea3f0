"""One server in a process of its own. Started by `nemo_gym.launch.fleet`, never by hand.

The parent hands over the configuration on standard input and keeps that pipe open: when it closes, the
parent is gone and this process ends. The status pipe carries one line up: ready, or why not.
"""

import argparse
import logging
import os
import signal
import socket
import sys
import threading

from nemo_gym.client import ServerClient
from nemo_gym.codec import encode_json
from nemo_gym.config import config_from_bytes
from nemo_gym.config.current import set_global_config_dict
from nemo_gym.errors import NeMoGymError
from nemo_gym.launch.embedded import build_hosted
from nemo_gym.servers.serve import serve

GRACE_S = 10.0
"""How long running requests may take to finish once the server is told to stop."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instance", required=True)
    parser.add_argument("--worker", type=int)
    parser.add_argument("--listener-fd", type=int, required=True)
    parser.add_argument("--status-fd", type=int, required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    config = config_from_bytes(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    set_global_config_dict(config.values)
    listener = socket.socket(fileno=options.listener_fd)
    try:
        client = ServerClient(config.head_server, config.values)
        hosted = build_hosted(config, options.instance, client, worker=options.worker)
    except NeMoGymError as error:
        _tell(options.status_fd, {"error": str(error)})
        sys.exit(error.exit_code)
    serve(
        hosted,
        config.server(options.instance),
        listener=listener,
        on_ready=lambda: _tell(options.status_fd, {"ready": True}),
    )


def _tell(status_fd: int, message: dict[str, object]) -> None:
    os.write(status_fd, encode_json(message) + b"\n")


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S + 2)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
