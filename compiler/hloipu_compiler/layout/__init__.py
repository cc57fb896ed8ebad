"""Layouts of values: demands of users, propagated back to what makes the values."""
