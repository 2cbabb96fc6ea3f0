"""Rollouts for a trainer: prompt groups with token ids, log-probabilities and rewards."""
