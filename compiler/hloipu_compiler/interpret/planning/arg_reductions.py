"""Recognises argmax and argmin, printed as a reduction of values and their places."""

from collections.abc import Callable
from functools import cache

import numpy as np

from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.planning.site import Site
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.kernels.core.extrema import has_negative_zero
from hloipu_runtime.kernels.core.monoids import identity
from hloipu_runtime.kernels.reduction import arg_extremum

DEEPEST = 8
"""Levels of a region's expression that are read; the longest known one has five."""

_STRICT = {True: "GT", False: "LT"}


def arg_reduction(site: Site) -> Callable[[list[Array]], list[Array] | None] | None:
    """Return how to evaluate a reduction as an argmax or argmin; None where it is none.

    What is returned answers None for arguments on which the region may say something else: other
    init values, zeros of both signs, and NaN where the region does not look for it.
    """
    dimensions = site.attributes.integers("dimensions")
    if len(site.operand_shapes) != 4 or len(dimensions) != 1:
        return None
    (dimension,) = dimensions
    region = site.module.computation[site.attributes.text("to_apply")]
    known = _known_regions().get(_expression(region, region.root, DEEPEST))
    if known is None or site.sizes(0)[dimension] == 0 or not _counts(site, dimension):
        return None
    largest, finds_nan = known
    element = ELEMENT_TYPES[site.element_type(0)]
    if element.kind not in (Kind.FLOAT, Kind.SIGNED, Kind.UNSIGNED) or element.bits < 8:
        return None
    places = ELEMENT_TYPES[site.leaf_types()[1]]
    if not places.is_integer or places.bits < 8:
        return None
    if site.sizes(0)[dimension] - 1 > np.iinfo(places.storage).max:
        return None  # places wrap around, and ties are decided by what they wrap to
    place_dtype = places.storage

    def run(x: list[Array]) -> list[Array] | None:
        start = identity("maximum" if largest else "minimum", x[0].dtype)
        if x[2] != start or x[3] != 0:
            return None
        results = arg_extremum(x[0], dimension, largest=largest, place_dtype=place_dtype)
        values = results[0]
        if values.dtype.kind == "f":
            if not finds_nan and np.isnan(values).any():
                return None
            if not values.all() and has_negative_zero([x[0]]):
                return None
        return results

    return run


def _counts(site: Site, dimension: int) -> bool:
    """Whether the second operand holds each element's place along the dimension."""
    computation = site.computation
    places = computation.instructions[site.instruction.operands[1]]
    while places.opcode == "broadcast":
        mapped = places.attributes.integers("dimensions")
        if dimension not in mapped:
            return False
        dimension = mapped.index(dimension)
        places = computation.instructions[places.operands[0]]
    return places.opcode == "iota" and places.attributes.integer("iota_dimension") == dimension


def _expression(computation: Computation, position: int, depth: int) -> str:
    """Write a scalar computation as one expression over p0, p1, …; "?" beyond the depth."""
    instruction: Instruction = computation.instructions[position]
    if instruction.opcode == "parameter":
        return f"p{instruction.parameter_number}"
    if depth == 0 or len(instruction.operands) > 4:
        return "?"
    parts = [_expression(computation, operand, depth - 1) for operand in instruction.operands]
    if instruction.opcode == "compare":
        order = "!" if instruction.attributes.text("type") == "TOTALORDER" else ""
        return f"{instruction.attributes.text('direction')}{order}({','.join(parts)})"
    if instruction.opcode in ("and", "or", "minimum"):
        parts.sort()
    return f"{instruction.opcode}({','.join(parts)})"


@cache
def _known_regions() -> dict[str, tuple[bool, bool]]:
    """Return expressions of regions, with (largest, whether NaN wins)."""
    known = {}
    for largest, strict in _STRICT.items():
        better = _both(f"{strict}(p0,p2)", "NE(p0,p0)", "or")
        tie = _both("EQ(p0,p2)", "LT(p1,p3)", "and")
        place = _both(better, tie, "or")
        # JAX's argmax and argmin.
        known[f"tuple(select({better},p0,p2),select({place},p1,p3))"] = (largest, True)
        # The older form, of XLA's own client library: the better one, and of equals the lower.
        reached = f"{strict[0]}E(p0,p2)"
        lower = f"select(EQ(p0,p2),minimum(p1,p3),select({reached},p1,p3))"
        known[f"tuple(select({reached},p0,p2),{lower})"] = (largest, False)
    return known


def _both(left: str, right: str, opcode: str) -> str:
    return f"{opcode}({','.join(sorted((left, right)))})"
