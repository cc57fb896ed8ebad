"""The modelled machine: its numbers with their sources, and what things cost on it."""
