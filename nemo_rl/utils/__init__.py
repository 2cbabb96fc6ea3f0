"""Timing, and metrics for W&B."""
