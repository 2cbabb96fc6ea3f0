"""The results of a run: metrics of each agent, merged shards, trackers."""
