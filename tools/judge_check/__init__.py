"""Measures the judge of `hloipu check`: what it finds of planted faults, what it says of none."""
