"""From input rows to the rollouts that remain to be played."""
