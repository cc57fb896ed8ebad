"""Evaluation plans: computations as straight-line steps over slots."""
