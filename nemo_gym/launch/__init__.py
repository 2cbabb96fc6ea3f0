"""Hosting: all servers in this process, or each in a process of its own."""

from nemo_gym.launch.embedded import host_embedded, open_servers

__all__ = ["host_embedded", "open_servers"]
