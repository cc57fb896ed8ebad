"""Lowerings of whole steps: pipelines of stages, gradients, the loop on the device."""
