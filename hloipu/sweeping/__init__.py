"""Sweeps: compile a module under every combination of values, on many workers."""
