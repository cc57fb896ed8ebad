"""Passes over loops: trip counts, carried values, tuples."""
