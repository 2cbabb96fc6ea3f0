"""Rollouts of one prompt: played, counted, retried, audited."""
