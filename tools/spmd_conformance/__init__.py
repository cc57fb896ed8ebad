"""Sharded JAX programs, divided by hloipu and by XLA: their values, and the bytes they send."""
