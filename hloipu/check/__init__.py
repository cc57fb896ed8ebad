"""Checking: outputs, single ops, steps in loops, and a time limit for all of it."""
