"""GRPO on a CPU: proof that a policy learns from the rollouts of this project."""

import os

# Read when torch is loaded, so it cannot wait: threads that spin while they wait take the cores from the
# engine, and where anything else runs they make a step ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
