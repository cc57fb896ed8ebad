"""Lowerings, an op family a file."""
