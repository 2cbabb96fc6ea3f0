"""Environments that a policy acts in: interfaces, steps, and the handle to Gym servers."""
