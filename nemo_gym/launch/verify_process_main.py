"""The process of `verify_in: process`. Started by `verify_process`, never by hand."""

import asyncio
import logging
import os
import signal
import sys

from nemo_gym.config import config_from_bytes
from nemo_gym.config.current import set_global_config_dict
from nemo_gym.launch.embedded import build_hosted
from nemo_gym.launch.verify_process import NoServers, answer_requests, read_frame
from nemo_gym.log_output import start_logging


def main() -> None:
    replies = os.fdopen(int(sys.argv[1]), "wb")
    os.set_inheritable(replies.fileno(), False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C
    os.dup2(2, 1)  # what the environment prints
    start_logging(logging.WARNING, with_names=True)
    requests = os.fdopen(os.dup(0), "rb")
    name = read_frame(requests).decode()
    config = config_from_bytes(read_frame(requests))
    set_global_config_dict(config.values)
    client = NoServers(config.head_server, config.values)
    asyncio.run(answer_requests(build_hosted(config, name, client), requests, replies))
