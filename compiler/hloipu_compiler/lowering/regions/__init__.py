"""Lowerings of what runs computations: fusions, rows, loops and branches."""
