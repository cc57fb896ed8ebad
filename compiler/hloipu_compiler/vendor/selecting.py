"""Library calls for top-k, sorting and permutations.

Operands and results: openxla/xla: xla/service/gpu/transforms/topk_specializer.cc and
sort_rewriter.cc, xla/service/topk_rewriter.cc (comparators), xla/hlo/translate (mhlo.topk),
xla/hlo/builder/lib/approx_topk.cc (PartialReduce);
jax-ml/jax: jax/_src/lax/linalg.py (lu_pivots_to_permutation).
"""

import math
from collections.abc import Sequence

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Loop, Step, Text, Value
from hloipu_compiler.hlo.printing.printer import print_computation
from hloipu_compiler.interpret.planning.comparators import ComparatorKey, comparator_keys


def largest_of(call: Call, x: Value, k: int, *, is_largest: bool = True) -> list[Value]:
    """Return the k largest or smallest of the last dimension, and where they are."""
    _need_k(call, x, k)
    dims = (*x.dims[:-1], k)
    op = f"topk({x.name}), k={k}, largest={str(is_largest).lower()}"
    values, places = x.text.several([(x.kind, dims), ("s32", dims)], op)
    return [values, places.converted(call.results[1][0])]


def _need_k(call: Call, x: Value, k: int) -> None:
    call.need(x.rank > 0 and 0 < k <= x.dims[-1], f"it takes {k} of {x.dims}")
    call.need(len(call.results) >= 2, "it gives values and indices")


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
    """Return the k that a comparator puts first, the largest without one, and where they are."""
    (x,) = call.takes(1)
    call.need(len(call.results) >= 2 and bool(call.results[0][1]), "it gives values and indices")
    k, called = call.results[0][1][-1], call.instruction.attributes.called
    keys = comparator_keys(call.module, called[0]) if called else None
    if not called or (keys and _is_total(keys, x)):
        best = largest_of(call, x, k, is_largest=not keys or keys[0].descending)
        return [*best, *call.workspaces(2)]
    _need_k(call, x, k)
    places = call.text.iota(call.results[1][0], x.dims, x.rank - 1)
    ordered = _ordered(call.text, [x, places], _comparator(call, called[0], (x, places)))
    return [*(column.sliced(x.rank - 1, 0, k) for column in ordered), *call.workspaces(2)]


def _is_total(keys: Sequence[ComparatorKey], x: Value) -> bool:
    """Whether a comparator orders values alone, floats in total order, as op topk does."""
    key = keys[0]
    is_float = x.kind[0] in "fb"
    return (
        len(keys) == 1
        and key.operand == 0
        and key.value is None
        and (key.order == "total" or not is_float)
    )


def _comparator(call: Call, name: str, operands: Sequence[Value]) -> str:
    """Return the name in the text of a module's comparator, which may be of values alone."""
    comparator, count = call.module.computation[name], 2 * len(operands)
    call.need(len(comparator.parameters) in (2, count), f"{name!r} does not compare two elements")
    if any(op.attributes.called for op in comparator.instructions):
        raise call.unsupported(f"its comparator {name!r} calls computations", "write them in place")
    call.text.callees[name] = print_computation(comparator) + "\n"
    if len(comparator.parameters) == count:
        return name
    root = f"  ROOT c = pred[] call(a0, b0), to_apply={name}"
    lines = [f"{name}.of_pairs {{", *_pairs_of(operands), root, "}", ""]
    call.text.callees[f"{name}.of_pairs"] = "\n".join(lines)
    return f"{name}.of_pairs"


def _pairs_of(operands: Sequence[Value]) -> list[str]:
    """Return a comparator's parameters: a0 and b0, two elements of the first operand, and so on."""
    pairs = [(operand.kind, f"{side}{n}") for n, operand in enumerate(operands) for side in "ab"]
    return [f"  {name} = {kind}[] parameter({m})" for m, (kind, name) in enumerate(pairs)]


def _ordered(text: Text, operands: Sequence[Value], comparator: str) -> list[Value]:
    """Return arrays sorted together along their last dimension, equal ones as they stood."""
    keys = operands[0]
    attributes = f"dimensions={{{keys.rank - 1}}}, is_stable=true, to_apply={comparator}"
    if len(operands) == 1:
        return [text.add("sort", keys.kind, keys.dims, keys.name, attributes)]
    arrays = [(operand.kind, operand.dims) for operand in operands]
    names = ", ".join(operand.name for operand in operands)
    return text.several(arrays, f"sort({names}), {attributes}")


@formula("PartialReduce")
def _best_of_bins(call: Call) -> Sequence[Value]:
    """Return the first of each bin by a comparator, and where it is: of equal ones the lowest.

    Bins are as many as the result has, of elements as far apart: which, the call leaves open.
    """
    x, places, *start = call.takes(4)
    called = call.instruction.attributes.called
    call.need(bool(called) and len(call.results) == 2, "it gives elements and places by comparing")
    alike = places.dims == x.dims and not any(value.rank for value in start)
    call.need(alike, "it takes elements, a place for each, and two scalars")
    kind, dims = call.results[0]
    d = call.axis("reduction_dim", x.rank)
    call.need(
        len(dims) == x.rank and x.dims == (*dims[:d], x.dims[d], *dims[d + 1 :]) and dims[d] > 0,
        f"it makes {dims} of {x.dims}",
    )
    bins, each = dims[d], -(-x.dims[d] // dims[d])
    high = [bins * each - x.dims[d] if e == d else 0 for e in range(x.rank)]
    padding = "padding=" + "x".join(f"0_{n}" for n in high)
    wide, split = (*dims[:d], bins * each, *dims[d + 1 :]), (*dims[:d], each, *dims[d:])
    parts = [
        call.text.add("pad", a.kind, wide, f"{a.name}, {b.name}", padding).reshaped(split)
        for a, b in zip((x, places), start, strict=True)
    ]
    name = _comparator(call, called[0], (x, places))
    number, index = kind, places.kind
    call.text.callees["best"] = f"""best {{
  a0 = {number}[] parameter(0)
  a1 = {index}[] parameter(1)
  b0 = {number}[] parameter(2)
  b1 = {index}[] parameter(3)
  before = pred[] call(a0, b0, a1, b1), to_apply={name}
  after = pred[] call(b0, a0, b1, a1), to_apply={name}
  equal = pred[] compare(before, after), direction=EQ
  u0 = u32[] convert(a1)
  u1 = u32[] convert(b1)
  lower = pred[] compare(u0, u1), direction=LT
  c = pred[] select(equal, lower, before)
  r0 = {number}[] select(c, a0, b0)
  r1 = {index}[] select(c, a1, b1)
  ROOT r = ({number}[], {index}[]) tuple(r0, r1)
}}
"""
    names = ", ".join(value.name for value in (*parts, *start))
    op = f"reduce({names}), dimensions={{{d}}}, to_apply=best"
    return call.text.several([(kind, dims), (index, dims)], op)


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
    direction = "GT" if descending else "LT"
    compare = f"  ROOT c = pred[] compare(a0, b0), direction={direction}{order}"
    lines = [f"{name} {{", *_pairs_of(operands), compare, "}", ""]
    text.callees[name] = "\n".join(lines)
    return [*_ordered(text, operands, name), *call.workspaces(len(operands))]


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
    return [permutation_of(call, pivots, call.results[0])]


def permutation_of(call: Call, pivots: Value, result: tuple[str, tuple[int, ...]]) -> Value:
    """Return the permutation, of a type and sizes, that swapping by pivots makes."""
    kind, dims = result
    call.need(bool(dims) and dims[:-1] == pivots.dims[:-1] and dims[-1] >= pivots.dims[-1],
              f"pivots {pivots.dims} do not permute {dims}")  # fmt: skip
    batch = math.prod(dims[:-1])
    count = pivots.dims[-1]
    order = call.text.iota("s32", (batch, dims[-1]), 1)
    initial = [pivots.converted("s32").reshaped((batch, count)), order]
    carried = Loop(call.text, count).run(initial, _Swap())
    return carried[1].reshaped(dims).converted(kind)
