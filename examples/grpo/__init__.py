"""GRPO on a CPU: shows that a policy learns from the rollouts of this project."""

import os

# Must be set before torch is imported. Threads that spin while they wait take CPU time from the engine, and
# make a step ten times slower if other programs are running.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
