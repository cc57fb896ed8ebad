"""The modelled IPU: kernels, machine, program, simulator. Knows nothing of HLO."""
