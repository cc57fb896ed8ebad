"""The faults of host streams, again and again while the processor is busy, and a long soak."""
