"""Evaluation of calls, branches and loops whose scalars became arrays."""

from collections.abc import Iterable
from math import prod

import numpy as np

from hloipu_compiler.interpret.planning.plan import Action, Array
from hloipu_compiler.interpret.planning.site import (
    LOWERINGS,
    Lowering,
    Region,
    Site,
    array_leaves,
    leaf_count,
)
from hloipu_runtime.errors import UnsupportedError


def _call(site: Site) -> Action:
    region = site.region_of(site.attributes.called[0])
    return lambda x: region(*x)


def _conditional(site: Site) -> Action:
    """Compute each branch for the elements that take it.

    A loop in a branch need not end for the others.
    """
    regions = [site.region_of(name) for name in site.attributes.called]
    counts = [leaf_count(shape) for shape in site.operand_shapes[1:]]
    by_predicate = site.element_type(0) == "pred"
    leaves = array_leaves(site.instruction.shape)
    dtypes = [np.dtype(leaf.element_type.storage or np.uint8) for leaf in leaves]

    def run(x: list[Array]) -> list[Array]:
        if by_predicate:
            index = np.where(x[0], 0, 1)
        else:  # any number beyond the branches takes the last one
            last = len(regions) - 1
            index = np.where((x[0] < 0) | (x[0] > last), last, x[0])
        shape = np.broadcast_shapes(*(a.shape for a in x))
        index = np.broadcast_to(index, shape)
        results = [np.empty(shape, dtype) for dtype in dtypes]
        first = 1
        for number, (region, count) in enumerate(zip(regions, counts, strict=True)):
            arguments, mask = x[first : first + count], index == number
            first += count
            if mask.any():
                values = region(*(np.broadcast_to(a, shape)[mask] for a in arguments))
                for result, value in zip(results, values, strict=True):
                    result[mask] = value
        return results

    return run


def _while(site: Site) -> Action:
    condition = site.region_of(site.attributes.text("condition"))
    body = site.region_of(site.attributes.text("body"))
    return lambda x: loop_on_elements(site.iterations(), condition, body, x)


def loop_on_elements(
    iterations: Iterable[object], condition: Region, body: Region, state: list[Array]
) -> list[Array]:
    """Run a loop for every element until none goes on; only those that do are computed on."""
    shape = np.broadcast_shapes(*(x.shape for x in state))
    current = [np.broadcast_to(x, shape).reshape(-1) for x in state]
    final = [x.copy() for x in current]
    places = np.arange(prod(shape))
    for _ in iterations:
        going = condition(*current)[0]
        if not going.all():
            for final_leaf, current_leaf in zip(final, current, strict=True):
                final_leaf[places[~going]] = current_leaf[~going]
            places = places[going]
            current = [x[going] for x in current]
        if not places.size:
            break
        current = list(body(*current))
    return [x.reshape(shape) for x in final]


def _bitcast_convert(site: Site) -> Action:
    """Reinterpret elements of one width; others would add or take a dimension."""
    if site.sizes() or site.sizes(0):
        raise UnsupportedError(
            "E0451",
            f"instruction {site.instruction.name!r}: the evaluator has no rule for a "
            "bitcast-convert between widths inside a computation applied to elements",
            hint="rewrite the module without this op, or drop what needs it",
        )
    return LOWERINGS["bitcast-convert"](site)


LIFTED: dict[str, Lowering] = {
    "bitcast-convert": _bitcast_convert,
    "call": _call,
    "fusion": _call,
    "map": _call,
    "conditional": _conditional,
    "while": _while,
}
"""Opcode -> lowering inside a computation that is applied to elements."""
