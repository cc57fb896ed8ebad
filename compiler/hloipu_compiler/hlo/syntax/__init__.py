"""Tokens, the grammar, and faults in a text."""
