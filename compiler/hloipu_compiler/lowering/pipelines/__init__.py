"""Lowering of whole steps: pipelines of stages, gradients, the device loop."""
