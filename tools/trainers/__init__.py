"""Training steps as people write them, each cut by hloipu and compared with JAX."""
