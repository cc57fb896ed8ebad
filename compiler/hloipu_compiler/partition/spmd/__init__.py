"""SPMD partitioning: shardings as the text states them, and what follows for every other value."""
