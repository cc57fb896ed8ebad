"""Sweeps: a module compiled under every combination of values, on many workers, row by row."""
