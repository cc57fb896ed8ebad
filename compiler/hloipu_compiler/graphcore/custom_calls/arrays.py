"""Array ops: scaled sums, partial updates, arg-max, one-hot codes."""

from collections.abc import Sequence

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value


def _scaled(call: Call, a: Value | None, x: Value, b: Value | None, y: Value) -> Value:
    """Return a x + b y or a x - b y; factors that are not there are 1."""
    opcode = call.word("operation", "add", "subtract", "multiply", "divide", "maximum", "minimum")
    left = x if a is None else x * _factor(call, a, x)
    right = y.converted(x.kind)
    right = right if b is None else right * _factor(call, b, x)
    return left.binary(opcode, right)


def _factor(call: Call, factor: Value, x: Value) -> Value:
    count = 1
    for size in factor.dims:
        count *= size
    call.need(count == 1, "a factor of it is not a number")
    return factor.reshaped(()).converted(x.kind)


@formula("ScaledInplaceXbY", "ScaledInplaceaXbY")
def _scaled_inplace(call: Call) -> Sequence[Value]:
    """X + b y, or a x + b y; or minus."""
    call.takes(4 if call.target == "ScaledInplaceaXbY" else 3)
    x, y, *factors = call.operands
    call.need(x.dims == y.dims, "its operands differ in shape")
    a = factors[0] if len(factors) == 2 else None
    return [_scaled(call, a, x, factors[-1], y)]


_SLICE_FACTORS = {"SliceApply": "", "SliceApplyaXb": "a", "SliceApplyabY": "b",
                  "SliceApplyaXbY": "ab"}  # fmt: skip


@formula(*_SLICE_FACTORS)
def _slice_apply(call: Call) -> Sequence[Value]:
    """Return an array with a stretch of it changed by an op."""
    names = _SLICE_FACTORS[call.target]
    call.takes(2 + len(names))
    x, y, *factors = call.operands
    call.need(x.rank == y.rank and x.rank > 0, "its operands differ in dimensions")
    dimension = call.axis("apply_dimension", x.rank)
    start = call.integer("start_index")
    stop = start + y.dims[dimension]
    size = x.dims[dimension]
    call.need(start >= 0 and stop <= size, f"it reaches to {stop}, of {size}")
    factor_by_name = dict(zip(names, factors, strict=True))
    part = _scaled(
        call, factor_by_name.get("a"), x.sliced(dimension, start, stop), factor_by_name.get("b"), y
    )
    parts = [x.sliced(dimension, 0, start)] if start else []
    parts += [part, *([x.sliced(dimension, stop, size)] if stop < size else [])]
    return [parts[0].concatenated(parts[1:], dimension)]


@formula("OneHot")
def _one_hot(call: Call) -> Sequence[Value]:
    indices, on, off = call.takes(3)
    depth = call.integer("depth")
    axis = call.integer("axis")
    rank = indices.rank + 1
    call.need(-rank <= axis < rank, f"axis is {axis}, and there are {rank} dimensions")
    axis %= rank
    dims = (*indices.dims[:axis], depth, *indices.dims[axis:])
    index_dims = [d for d in range(rank) if d != axis]
    numbers = call.text.iota(indices.kind, dims, axis)
    hot = indices.broadcast(dims, index_dims).compared("EQ", numbers)
    return [hot.select(on.reshaped(()), off.reshaped(()), call.text.full(on.kind, dims, 0))]


@formula("ArgMax", "ArgMin", "MaxAndArgMax", "MinAndArgMin")
def _arg(call: Call) -> Sequence[Value]:
    """Return the extreme along an axis, and the first place where it is."""
    (x,) = call.takes(1)
    call.need(x.rank > 0, "there is no axis to look along")
    axis = call.axis("axis", x.rank)
    least, most = _ends(x.kind)
    opcode, start = ("maximum", least) if "Max" in call.target else ("minimum", most)
    best = x.reduced(opcode, [axis], start)
    other_dims = [d for d in range(x.rank) if d != axis]
    size = x.dims[axis]
    places = call.text.iota("s32", x.dims, axis)
    is_best = x.compared("EQ", best.broadcast(x.dims, other_dims))
    nowhere = call.text.full("s32", x.dims, size)
    first_place = is_best.select(places, nowhere, places).reduced("minimum", [axis], size)
    kind = call.results[-1][0] if call.results else "s32"
    index = first_place.converted(kind).reshaped(
        call.results[-1][1] if call.results else first_place.dims
    )
    if not call.target.startswith("Arg"):
        return [best, index]
    return [index]


def _ends(kind: str) -> tuple[float, float]:
    """Return what is below and above all values of a type."""
    if kind[0] in "fb":
        return float("-inf"), float("inf")
    bits = int(kind[1:])
    if kind[0] == "u":
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


@formula("CopyInto")
def _copy_into(call: Call) -> Sequence[Value]:
    _, value = call.takes(2)
    return [value]


@formula("Uninitialised", "CreateBuffer")
def _nothing_yet(call: Call) -> Sequence[Value]:
    """Memory that is written before it is read: zeros."""
    call.takes(0)
    return [call.text.full(kind, dims, 0) for kind, dims in call.results]


@formula("SelectScalarFromRows")
def _select_scalar(call: Call) -> Sequence[Value]:
    """Element index[i] of row i; 0 where there is none."""
    x, indices = call.takes(2)
    is_there = _is_column(call, x, indices)
    return [is_there.select(x, 0.0, x).reduced("add", [1])]


@formula("UpdateScalarInRows")
def _update_scalar(call: Call) -> Sequence[Value]:
    """Rows whose element index[i] is less by 1."""
    x, indices = call.takes(2)
    return [_is_column(call, x, indices).select(x - 1.0, x, x)]


def _is_column(call: Call, x: Value, indices: Value) -> Value:
    call.need(x.rank == 2 and indices.dims == x.dims[:1], "it takes rows, and an index for each")
    columns = call.text.iota(indices.kind, x.dims, 1)
    return indices.broadcast(x.dims, [0]).compared("EQ", columns)
