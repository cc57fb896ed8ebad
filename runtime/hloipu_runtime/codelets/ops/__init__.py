"""Codelets of elementwise work, reductions, movement, sorting and random numbers."""
