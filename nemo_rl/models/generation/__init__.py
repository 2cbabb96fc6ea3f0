"""Generation: the interface and a backend."""
