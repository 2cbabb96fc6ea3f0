"""What a run leaves: metrics of each agent, merged shards, trackers."""
