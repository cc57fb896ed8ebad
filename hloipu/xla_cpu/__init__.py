"""XLA:CPU through jaxlib, in a child process: an independent reference of values.

Needs the extra `hloipu[jax]`. XLA aborts its process on some modules, so it never runs in ours.
"""
