"""Library calls for top-k, sorting and permutations.

Operands and results: openxla/xla: xla/service/gpu/transforms/topk_specializer.cc and
sort_rewriter.cc, xla/hlo/translate (mhlo.topk); jax-ml/jax: jax/_src/lax/linalg.py
(lu_pivots_to_permutation).
"""

import math
from collections.abc import Sequence

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.loop import Loop, Step
from hloipu_compiler.formulas.text import Value, shape_text


def largest_of(call: Call, x: Value, k: int, *, is_largest: bool = True) -> list[Value]:
    """Return the k largest or smallest of the last dimension, and where they are."""
    call.need(x.rank > 0 and 0 < k <= x.dims[-1], f"it takes {k} of {x.dims}")
    call.need(len(call.results) >= 2, "it gives values and indices")
    dims = (*x.dims[:-1], k)
    text, name = x.text, f"v{len(x.text.lines)}"
    shapes = f"({shape_text(x.kind, dims)}, {shape_text('s32', dims)})"
    attributes = f"k={k}, largest={str(is_largest).lower()}"
    text.lines.append(f"  {name} = {shapes} topk({x.name}), {attributes}")
    values = text.add("get-tuple-element", x.kind, dims, name, "index=0")
    places = text.add("get-tuple-element", "s32", dims, name, "index=1")
    return [values, places.converted(call.results[1][0])]


def _beyond(kind: str, *, is_least: bool) -> float:
    """Return a number of a type that no other is beyond."""
    if kind[0] in "fb":
        return math.inf if is_least else -math.inf
    bits = int(kind[1:])
    low, high = (0, 2**bits - 1) if kind[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return high if is_least else low


def largest_index(x: Value, dimension: int, *, is_least: bool = False) -> Value:
    """Return s32, where the largest along a dimension is, the first of equal ones, or a NaN."""
    other_dims = tuple(d for d in range(x.rank) if d != dimension)
    opcode = "minimum" if is_least else "maximum"
    most = x.reduced(opcode, [dimension], _beyond(x.kind, is_least=is_least))
    is_largest = x.compared("EQ", most.broadcast(x.dims, other_dims))
    if x.kind[0] in "fb":
        is_largest = is_largest | x.compared("NE", x)
    at, last = x.text.iota("s32", x.dims, dimension), x.dims[dimension] - 1
    return is_largest.select(at, last, at).reduced("minimum", [dimension], last)


@formula("mhlo.topk")
def _mhlo_top_k(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    call.need(bool(call.results) and x.rank > 0, "it gives values and indices")
    attributes = call.attributes_of_mhlo()
    k = attributes.integer("k", call.results[0][1][-1] if call.results[0][1] else 0)
    return largest_of(call, x, k, is_largest=attributes.flag("largest", default=True))


@formula("TopK", "__gpu$TopK")
def _top_k(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    call.need(bool(call.results) and bool(call.results[0][1]), "it gives values and indices")
    return [*largest_of(call, x, call.results[0][1][-1]), *call.workspaces(2)]


@formula("mhlo.erf")
def _erf(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    return [x.unary("erf")]


@formula("mhlo.tan")
def _tan(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    return [x.unary("tan")]


@formula("__cub$DeviceRadixSort")
def _radix_sort(call: Call) -> Sequence[Value]:
    """Return keys in order of the last dimension, values with them, and a workspace."""
    operands = call.takes(1, 2)
    keys = operands[0]
    call.need(
        keys.rank > 0 and all(operand.dims == keys.dims for operand in operands),
        "its operands differ",
    )
    descending = call.flag("descending", default=False)
    text = keys.text
    name = f"order.{len(text.callees)}"
    order = ", type=TOTALORDER" if keys.kind[0] in "fb" and keys.kind != "pred" else ""
    lines = [f"{name} {{"]
    for n, operand in enumerate(operands):
        for m, side in enumerate("ab"):
            lines.append(f"  {side}{n} = {operand.kind}[] parameter({2 * n + m})")
    direction = "GT" if descending else "LT"
    lines += [f"  ROOT c = pred[] compare(a0, b0), direction={direction}{order}", "}", ""]
    text.callees[name] = "\n".join(lines)
    attributes = f"dimensions={{{keys.rank - 1}}}, is_stable=true, to_apply={name}"
    if len(operands) == 1:
        return [text.add("sort", keys.kind, keys.dims, keys.name, attributes), *call.workspaces(1)]
    result = f"v{len(text.lines)}"
    shapes = ", ".join(shape_text(operand.kind, operand.dims) for operand in operands)
    text.lines.append(
        f"  {result} = ({shapes}) sort({operands[0].name}, {operands[1].name}), {attributes}"
    )
    columns = [
        text.add("get-tuple-element", operand.kind, operand.dims, result, f"index={n}")
        for n, operand in enumerate(operands)
    ]
    return [*columns, *call.workspaces(2)]


class _Swap(Step):
    """Swaps place i of each permutation with the place that the i-th pivot says."""

    def __call__(self, iteration: Value, carried: Sequence[Value]) -> Sequence[Value]:
        pivots, order = carried
        place = order.text.iota("s32", order.dims, 1)
        column = order.text.iota("s32", pivots.dims, 1).compared("EQ", iteration)
        pivot = column.select(pivots, 0.0, pivots).reduced("add", [1]).broadcast(order.dims, (0,))
        at, is_pivot = place.compared("EQ", iteration), place.compared("EQ", pivot)
        at_iteration, at_pivot = (
            mask.select(order, 0.0, order).reduced("add", [1]).broadcast(order.dims, (0,))
            for mask in (at, is_pivot)
        )
        return [pivots, at.select(at_pivot, is_pivot.select(at_iteration, order, order), order)]


@formula("lu_pivots_to_permutation", "cu_lu_pivots_to_permutation", "hip_lu_pivots_to_permutation")
def _permutation(call: Call) -> Sequence[Value]:
    """Return the permutation that swapping by pivots, counted from 0, makes of all places."""
    (pivots,) = call.takes(1)
    call.need(len(call.results) == 1 and pivots.rank > 0, "it gives one array")
    kind, dims = call.results[0]
    call.need(bool(dims) and dims[:-1] == pivots.dims[:-1] and dims[-1] >= pivots.dims[-1],
              f"pivots {pivots.dims} do not permute {dims}")  # fmt: skip
    batch = math.prod(dims[:-1])
    count = pivots.dims[-1]
    order = call.text.iota("s32", (batch, dims[-1]), 1)
    initial = [pivots.converted("s32").reshaped((batch, count)), order]
    carried = Loop(call.text, count).run(initial, _Swap())
    return [carried[1].reshaped(dims).converted(kind)]
