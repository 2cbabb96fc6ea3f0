"""Whether the tokens of a rollouts file can be trained on, and where and why not."""
