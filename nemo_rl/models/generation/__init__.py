"""Generation: the interface, and a backend that runs a transformers model."""
