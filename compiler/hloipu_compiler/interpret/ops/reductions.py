"""Evaluation of reductions, windows, scatters, maps and scans."""

from math import prod

import numpy as np

from hloipu_compiler.interpret.planning.arg_reductions import arg_reduction
from hloipu_compiler.interpret.planning.plan import Action, Array, may_overwrite
from hloipu_compiler.interpret.planning.regions import assigned_parameter, monoid_of
from hloipu_compiler.interpret.planning.site import Region, Site, lowers
from hloipu_runtime.kernels.reduction import MANY_ROWS, SHORT_AXIS, SUM_BLOCK_ROWS, reduce
from hloipu_runtime.kernels.scatter import ScatterDimensions, scatter
from hloipu_runtime.kernels.select_scatter import select_and_scatter
from hloipu_runtime.kernels.windows import reduce_window
from hloipu_runtime.kernels.windows_geometry import WindowDimension


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
