"""Benchmarks of hloipu, beside XLA in the same run where there is something to compare with."""
