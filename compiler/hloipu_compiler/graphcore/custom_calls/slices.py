"""Embedding reads and updates, sequence slices, histograms."""

import math
from collections.abc import Sequence

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value


@formula("MultiSlice", "StaticMultiSlice")
def _multi_slice(call: Call) -> Sequence[Value]:
    """Rows of an array; indices beyond it read the nearest row."""
    is_static = call.target.startswith("Static")
    table, *index_operands = call.takes(1 if is_static else 2)
    indices = _constant_indices(call) if is_static else _column(index_operands[0])
    call.need(table.rank > 0 and bool(call.results), "there are no rows")
    width = table.dims[1:]
    dims = (indices.dims[0], *width)
    sizes = ",".join(map(str, (1, *width)))
    offsets = ",".join(str(1 + d) for d in range(len(width)))
    rows = call.text.add(
        "gather", table.kind, dims, f"{table.name}, {indices.name}",
        f"offset_dims={{{offsets}}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, "
        f"index_vector_dim=1, slice_sizes={{{sizes}}}",
    )  # fmt: skip
    kind, wanted = call.results[0]
    same = math.prod(wanted) == math.prod(dims) and kind == table.kind
    return [rows.reshaped(wanted) if same else rows]


@formula("MultiUpdate", "MultiUpdateAdd", "StaticMultiUpdateAdd")
def _multi_update(call: Call) -> Sequence[Value]:
    """Return an array with rows replaced, or with rows times a factor added, one by one."""
    is_static = call.target.startswith("Static")
    adds = call.target.endswith("Add")
    call.takes(*((4 - is_static,) if adds else (3, 4)))  # a factor that replacing has no use for
    table, *operands = call.operands
    indices = _constant_indices(call) if is_static else _column(operands.pop(0))
    rows = operands[0]
    dims = (indices.dims[0], *table.dims[1:])
    call.need(
        math.prod(rows.dims) == math.prod(dims), "its rows are not as many and wide as they must be"
    )
    rows = rows.reshaped(dims).converted(table.kind)
    if adds:
        factor = operands[1]
        call.need(math.prod(factor.dims) == 1, "its factor is not a number")
        rows = rows * factor.reshaped(()).converted(table.kind)
        combine = call.text.reducer("add", table.kind)
    else:
        combine = _second(call, table.kind)
    window = ",".join(str(1 + d) for d in range(table.rank - 1))
    return [
        call.text.add(
            "scatter", table.kind, table.dims, f"{table.name}, {indices.name}, {rows.name}",
            f"update_window_dims={{{window}}}, inserted_window_dims={{0}}, "
            f"scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply={combine}",
        )
    ]  # fmt: skip


def _second(call: Call, kind: str) -> str:
    name = f"second.{kind}"
    call.text.callees[name] = (
        f"{name} {{\n  a = {kind}[] parameter(0)\n  ROOT b = {kind}[] parameter(1)\n}}\n"
    )
    return name


def _column(indices: Value) -> Value:
    return indices.reshaped((math.prod(indices.dims), 1))


def _constant_indices(call: Call) -> Value:
    numbers = call.integers("indices")
    call.need(bool(numbers), "it has no indices")
    text = "{" + ",".join(f"{{{n}}}" for n in numbers) + "}"
    return call.text.add("constant", "s32", (len(numbers), 1), text)


@formula("SequenceSlice", "SequenceSliceUnpack")
def _sequence_slice(call: Call) -> Sequence[Value]:
    """Stretches of a source put into a destination, or into rows of zeros.

    Stretch i has count[i] elements, from from[i] on in the source, to[i] on in the destination.
    """
    packs = call.target == "SequenceSlice"
    call.takes(5 if packs else 4)
    source, counts, begins, ends = call.operands[1:] if packs else call.operands
    kind, dims = call.results[0]
    rank = source.rank
    call.need(rank > 0 and dims[1:] == source.dims[1:], "source and result differ in width")
    clears = call.flag("zero_unused", default=False) or not packs
    start = call.text.full(kind, dims, 0) if clears else call.operands[0]
    table = start
    places = call.text.iota("s32", (dims[0],), 0)
    for number in range(math.prod(counts.dims)):
        count, begin, end = (
            v.sliced(0, number, number + 1).reshaped(()).converted("s32")
            for v in (counts, begins, ends)
        )
        inside = places.compared("GE", end) & places.compared("LT", end + count)
        index = (places - end + begin).binary("maximum", 0)
        index = index.binary("minimum", source.dims[0] - 1).reshaped((dims[0], 1))
        sizes = ",".join(map(str, (1, *source.dims[1:])))
        offsets = ",".join(str(1 + d) for d in range(rank - 1))
        rows = call.text.add(
            "gather", kind, dims, f"{source.name}, {index.name}",
            f"offset_dims={{{offsets}}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, "
            f"index_vector_dim=1, slice_sizes={{{sizes}}}",
        )  # fmt: skip
        table = inside.broadcast(dims, [0]).select(rows, table, table)
    return [table]


@formula("Histogram", "HistogramUpdate")
def _histogram(call: Call) -> Sequence[Value]:
    """Count elements between levels: below the first, between neighbours, from the last on.

    The update adds to counts that there are.
    """
    updates = call.target == "HistogramUpdate"
    call.takes(3 if updates else 2)
    x, levels = call.operands[-2:]
    kind, dims = call.results[0]
    call.need(levels.rank == 1 and dims == (levels.dims[0] + 1,), "it counts levels and one more")
    x = x.reshaped((math.prod(x.dims),))
    if call.flag("absolute_of_input", default=False):
        x = x.unary("abs")
    grid = (levels.dims[0], x.dims[0])
    above = x.broadcast(grid, [1]).compared("GE", levels.broadcast(grid, [0])).converted("f32")
    counts = above.reduced("add", [1])
    element_count = call.text.full("f32", (1,), x.dims[0])
    nothing = call.text.full("f32", (1,), 0)
    histogram = element_count.concatenated([counts], 0) - counts.concatenated([nothing], 0)
    histogram = histogram.converted(kind)
    return [call.operands[0] + histogram if updates else histogram]
