"""Planners: candidates for an op's tiles and grid, priced, and the cheapest picked."""
