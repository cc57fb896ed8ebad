"""Loops over stacked weights, cut by trips, and the arrays that they read, cut into pieces."""
