"""The simulator: runs a program with real values, tile by tile or whole tensors at a time."""
