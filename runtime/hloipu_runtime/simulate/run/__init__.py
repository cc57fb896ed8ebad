"""Context of a run: participants, host, queues, seeds and kept state."""
