"""Settings of an engine."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EngineSettings:
    """What an engine serves, and how."""

    model_path: Path
    """The weights: a GGUF file."""
    weight_version: int | None = None
    """The trainer's number for the weights; distinguishes weights that are served one after the other."""
    chat_template: str | None = None
    """Jinja text; None: the template in the weights."""
    slots: int = 4
    """Generations that run at the same time; more wait."""
    context: int = 2048
    """Tokens of prompt and generation together, per slot."""
    threads: int = 1
    """Threads for a generation that runs alone."""
    prompt_threads: int = 1
    """Threads for prompts, and for generations that run together."""
    max_restarts: int = 3
    """How many times within `restart_window_s` an engine that dies is started again."""
    restart_window_s: float = 600.0
    startup_s: float = 120.0
    """Time to load the weights. Long, because weights may be many gigabytes on a slow disk."""
