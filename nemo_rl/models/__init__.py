"""Policy models: loading, export and generation."""
