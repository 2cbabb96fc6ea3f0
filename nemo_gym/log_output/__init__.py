"""Log lines on standard error: safe to show, without secrets; repeated failures are counted."""

from nemo_gym.log_output.handler import (
    EVENT,
    LogHandler,
    LogsAbove,
    hidden,
    log_counts,
    log_foreign_line,
    logs_shown,
    start_logging,
)
from nemo_gym.log_output.repeated import RepeatPolicy

__all__ = [
    "EVENT",
    "LogHandler",
    "LogsAbove",
    "RepeatPolicy",
    "hidden",
    "log_counts",
    "log_foreign_line",
    "logs_shown",
    "start_logging",
]
