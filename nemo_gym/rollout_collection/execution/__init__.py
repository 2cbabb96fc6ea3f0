"""Playing rollouts: one attempt, dispatch with deadlines and retries, executors and their workers."""
