"""Evaluation of reductions, windows, scatters, maps and scans."""

from collections.abc import Callable
from functools import cache
from math import prod

import numpy as np

from hloipu_compiler.interpret.planning.comparators import counts_along
from hloipu_compiler.interpret.planning.plan import Action, Array, may_overwrite
from hloipu_compiler.interpret.planning.regions import assigned_parameter, monoid_of
from hloipu_compiler.interpret.planning.site import Region, Site, lowers
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.kernels.core.extrema import has_negative_zero
from hloipu_runtime.kernels.core.monoids import identity
from hloipu_runtime.kernels.reduction import (
    MANY_ROWS,
    SHORT_AXIS,
    SUM_BLOCK_ROWS,
    arg_extremum,
    reduce,
)
from hloipu_runtime.kernels.scatter import ScatterDimensions, scatter
from hloipu_runtime.kernels.select_scatter import select_and_scatter
from hloipu_runtime.kernels.windows import reduce_window
from hloipu_runtime.kernels.windows_geometry import WindowDimension

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
    if (
        known is None
        or site.sizes(0)[dimension] == 0
        or not counts_along(site.computation, site.instruction.operands[1], dimension)
    ):
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
        better = _commutative_text(f"{strict}(p0,p2)", "NE(p0,p0)", "or")
        tie = _commutative_text("EQ(p0,p2)", "LT(p1,p3)", "and")
        place = _commutative_text(better, tie, "or")
        # JAX's argmax and argmin.
        known[f"tuple(select({better},p0,p2),select({place},p1,p3))"] = (largest, True)
        # The older form, of XLA's own client library: the better one, and of equals the lower.
        reached = f"{strict[0]}E(p0,p2)"
        lower = f"select(EQ(p0,p2),minimum(p1,p3),select({reached},p1,p3))"
        known[f"tuple(select({reached},p0,p2),{lower})"] = (largest, False)
    return known


def _commutative_text(left: str, right: str, opcode: str) -> str:
    return f"{opcode}({','.join(sorted((left, right)))})"


def combiner(site: Site, key: str = "to_apply") -> str | Region:
    """Return the monoid that a reducer is, or the reducer as a function on arrays."""
    name = site.attributes.text(key)
    return monoid_of(site.module, name) or site.region_of(name)


def _monoid_or_region(site: Site, arrays: int) -> str | Region:
    if arrays == 1:
        return combiner(site)
    return site.region_of(site.attributes.text("to_apply"))


@lowers("reduce")
def _reduce(site: Site) -> Action:
    arrays = len(site.operand_shapes) // 2
    dimensions = site.attributes.integers("dimensions")
    how, types = _monoid_or_region(site, arrays), site.leaf_types()
    if arrays == 1 and how == "add" and types[0] in ("f32", "f64") and _is_short(site, dimensions):
        axis = dimensions[0]
        return lambda x: (np.asarray(np.add(x[1], np.add.reduce(x[0], axis=axis))),)
    by_places = arg_reduction(site)

    def run(x: list[Array]) -> list[Array]:
        extremes = by_places(x) if by_places is not None else None
        return extremes or reduce(x[:arrays], x[arrays:], dimensions, how, types)  # type: ignore[arg-type]

    return run


SHORT_SUM_ELEMENTS = 1 << 14


def _is_short(site: Site, dimensions: tuple[int, ...]) -> bool:
    """Whether numpy's own sum along one axis is what the kernel would do, without its set-up."""
    sizes = site.sizes(0)
    if len(dimensions) != 1 or not 0 < prod(sizes) <= SHORT_SUM_ELEMENTS:
        return False
    count, inner = sizes[dimensions[0]], prod(sizes[dimensions[0] + 1 :])
    if inner > 1:
        return count <= 2 * SUM_BLOCK_ROWS
    return prod(sizes) // count < MANY_ROWS or count > SHORT_AXIS


def window_dimensions(site: Site) -> tuple[WindowDimension, ...]:
    """Return the window's dimensions; none written means a window of one everywhere."""
    written = site.attributes.window().dimensions
    if not written:
        return tuple(WindowDimension(1) for _ in site.sizes(0))
    return written


@lowers("reduce-window")
def _reduce_window(site: Site) -> Action:
    arrays = len(site.operand_shapes) // 2
    window, how = window_dimensions(site), _monoid_or_region(site, arrays)
    types = site.leaf_types()
    return lambda x: reduce_window(x[:arrays], x[arrays:], window, how, types)  # type: ignore[arg-type]


@lowers("select-and-scatter")
def _select_and_scatter(site: Site) -> Action:
    window, element_type = window_dimensions(site), site.element_type()
    select = site.attributes.text("select")
    choose = _direction_of(site, select) or _predicate(site.region_of(select))
    how = combiner(site, "scatter")

    def run(x: list[Array]) -> tuple[Array]:
        return (select_and_scatter(x[0], x[1], x[2], window, choose, how, element_type),)  # type: ignore[arg-type]

    return run


def _direction_of(site: Site, name: str) -> str | None:
    """Return ge, gt, le or lt where a selector is that plain comparison of its two parameters."""
    computation = site.module.computation[name]
    root = computation.instructions[computation.root]
    if root.opcode != "compare" or root.attributes.text("type") == "TOTALORDER":
        return None
    numbers = [computation.instructions[i].parameter_number for i in root.operands]
    direction = root.attributes.text("direction")
    plain = numbers == [0, 1] and direction in ("GE", "GT", "LE", "LT")
    return direction.lower() if plain else None


def _predicate(region: Region) -> Region:
    return lambda *x: region(*x)[0]  # type: ignore[return-value]


@lowers("scatter")
def _scatter(site: Site) -> Action:
    arrays = len(site.operand_shapes) // 2
    integers = site.attributes.integers
    dims = ScatterDimensions(
        integers("update_window_dims"),
        integers("inserted_window_dims"),
        integers("scatter_dims_to_operand_dims"),
        site.attributes.integer("index_vector_dim"),
        integers("input_batching_dims"),
        integers("scatter_indices_batching_dims"),
    )
    name = site.attributes.text("to_apply")
    how: str | Region = _monoid_or_region(site, arrays)
    if arrays == 1 and assigned_parameter(site.module, name) == 1:
        how = "assign"
    unique, types = site.attributes.flag("unique_indices"), site.leaf_types()

    def run(x: list[Array]) -> list[Array]:
        dead = all(may_overwrite(x, i) for i in range(arrays))
        return scatter(
            x[:arrays], x[arrays], x[arrays + 1 :], dims, how, types,
            unique_indices=unique, in_place=dead,
        )  # fmt: skip

    return run


@lowers("map")
def _map(site: Site) -> Action:
    region = site.region_of(site.attributes.text("to_apply"))
    return lambda x: region(*x)
