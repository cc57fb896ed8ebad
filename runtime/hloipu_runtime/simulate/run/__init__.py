"""What a run has besides values: participants, host, queues, seeds and kept state."""
