"""Random typed HLO programs, evaluated by us and by XLA:CPU, and compared."""
