"""A policy's weights: from a GGUF file into torch, and back into one that the local engine serves."""

from nemo_rl.models.weights.gguf_export import export_gguf
from nemo_rl.models.weights.gguf_policy import Policy, load_policy

__all__ = ["Policy", "export_gguf", "load_policy"]
