"""Search over partitionings with a cost model."""
