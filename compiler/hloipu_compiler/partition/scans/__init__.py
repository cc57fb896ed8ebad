"""Loops over stacked weights, cut into ranges of trips, and stacked arrays, cut into pieces."""
