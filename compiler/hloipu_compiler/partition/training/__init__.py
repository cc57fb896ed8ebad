"""From a plain training step to micro-batches, stages and one update: who does what, and when."""
