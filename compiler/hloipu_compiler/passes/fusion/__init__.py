"""Fusion of elementwise ops and of row regions, and recomputation."""
