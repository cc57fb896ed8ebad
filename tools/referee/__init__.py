"""Compares what two commits of hloipu make of the same programs."""
