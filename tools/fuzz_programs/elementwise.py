"""Families of elementwise operations, gathered, and the element types that they meet."""

from tools.fuzz_programs import complexes, conversions, floats, integers
from tools.fuzz_programs.builder import Families

FAMILIES: Families = {
    **floats.FAMILIES, **integers.FAMILIES, **complexes.FAMILIES, **conversions.FAMILIES,
}  # fmt: skip
"""Family -> weight."""
