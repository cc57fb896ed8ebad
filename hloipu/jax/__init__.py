"""JAX functions on the simulated device; JAX is an extra, and nothing else of hloipu needs it."""

from hloipu.jax.lowering import LoweredFunction, lower
from hloipu.jax.programs import JaxFunction, JaxProgram, compile, estimate, jit

__all__ = ["JaxFunction", "JaxProgram", "LoweredFunction", "compile", "estimate", "jit", "lower"]
