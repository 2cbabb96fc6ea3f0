"""Hosting: all servers in this process, or a process for each."""

from nemo_gym.launch.embedded import host_embedded, open_servers

__all__ = ["host_embedded", "open_servers"]
