"""Plays the rollouts of prompts: retries, metrics, buffers, training batches."""
