"""Shared parts of kernels: storage, rounding, cache blocks, monoids, movement."""
