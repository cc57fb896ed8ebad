"""Fusion of elementwise ops and of rows, and recomputing what is cheap."""
