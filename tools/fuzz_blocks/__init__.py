"""Blocks of networks at real sizes, drawn from a seed as HLO text, and compiled."""
