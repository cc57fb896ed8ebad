"""Finds a training step's loss, gradients, update and the phase of every op."""
