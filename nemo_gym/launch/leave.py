"""Exits a process even if code of an environment does not end: blocked threads, tasks that keep running."""

import os
import sys
import threading

from nemo_gym.terminal import safe_text


class Leaving:
    """Exits this process after a delay, unless it ends before: call `within`, later `done`."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def within(self, seconds: float, exit_code: int, last_words: str = "") -> None:
        """Exit this process after this time, if it has not ended by then."""

        def leave() -> None:
            sys.stderr.write(safe_text(last_words))
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(exit_code)

        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, leave)
        self._timer.daemon = True
        self._timer.start()

    def done(self) -> None:
        """Cancel the exit, unless threads are still running and would keep the process alive."""
        if self._timer is not None and not _has_threads():
            self._timer.cancel()


def _has_threads() -> bool:
    main = threading.main_thread()
    return any(not thread.daemon and thread is not main for thread in threading.enumerate())
