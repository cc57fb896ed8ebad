"""Measurements of reading HLO text."""
