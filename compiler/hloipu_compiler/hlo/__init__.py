"""The HLO text format: reading it into a module, and printing a module back."""
