"""How an engine is run."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EngineSettings:
    """What is served, and how."""

    model_path: Path
    """Weights, a GGUF file."""
    weight_version: int | None = None
    """What a trainer calls the weights; tells apart those that were served one after the other."""
    chat_template: str | None = None
    """Jinja text; None: the one in the weights."""
    slots: int = 4
    """Generations at once; more wait for their turn."""
    context: int = 2048
    """Tokens of prompt and generation together, in each slot."""
    threads: int = 1
    """Cores that compute a generation that runs alone."""
    prompt_threads: int = 1
    """Cores that compute prompts, and generations that run together."""
    max_restarts: int = 3
    """How often within `restart_window_s` an engine that dies is started again."""
    restart_window_s: float = 600.0
    startup_s: float = 120.0
    """Until the weights are loaded. Generous: some are many gigabytes, on a slow disk."""
