"""The files of a run: rollouts, failures, manifest, status and lock."""
