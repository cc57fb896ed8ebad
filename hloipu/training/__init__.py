"""Training from Python: the trainer, its programs, data and records."""
