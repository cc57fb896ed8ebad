"""Copies of what loops do not change: before loops where there is room, else in them."""
