"""Leaving a process although code of an environment does not end: threads that block, tasks that go on."""

import os
import sys
import threading


class Leaving:
    """Ends this process after a while, unless it is done before: `within`, later `done`."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def within(self, seconds: float, exit_code: int, last_words: str = "") -> None:
        """End this process after so long, if it has not ended by itself then."""

        def leave() -> None:
            sys.stderr.write(last_words)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(exit_code)

        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, leave)
        self._timer.daemon = True
        self._timer.start()

    def done(self) -> None:
        """Whatever it was for is over; only threads that still run would keep the process."""
        if self._timer is not None and not _has_threads():
            self._timer.cancel()


def _has_threads() -> bool:
    main = threading.main_thread()
    return any(not thread.daemon and thread is not main for thread in threading.enumerate())
