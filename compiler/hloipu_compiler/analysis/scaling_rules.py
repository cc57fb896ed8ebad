"""Per opcode: dimensions of operands and results that are equal, or multiples of each other."""

from collections.abc import Callable, Mapping

from hloipu_compiler.analysis.joined_dims import Joined, Value
from hloipu_compiler.ir.attributes import ConvolutionLabels
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.ops import OPS, Trait

Rule = Callable[[Joined, Instruction, list[Value], list[Value]], None]


def _like(work: Joined, _: Instruction, results: list[Value], operands: list[Value]) -> None:
    """Every operand and result of one rank has the same dimensions."""
    for value in (*results[1:], *operands):
        work.join_equal(value, results[0])


def _broadcast(work: Joined, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    for i, k in enumerate(x.attributes.integers("dimensions")):
        work.join(operands[0], i, results[0], k)


def _transpose(work: Joined, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    for k, i in enumerate(x.attributes.integers("dimensions")):
        work.join(operands[0], i, results[0], k)


def _reduce(work: Joined, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    gone = set(x.attributes.integers("dimensions"))
    arrays = operands[: len(operands) // 2]
    for other in arrays[1:]:
        work.join_equal(other, arrays[0])
    kept = [i for i in range(len(arrays[0].sizes)) if i not in gone]
    for result in results:
        for k, i in enumerate(kept):
            work.join(arrays[0], i, result, k)


def _dot(work: Joined, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    lhs, rhs = operands[:2]
    names = ("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims")
    batches, others, left, right = (x.attributes.integers(name) for name in names)
    for i, k in (*zip(batches, others, strict=True), *zip(left, right, strict=True)):
        work.join(lhs, i, rhs, k)
    for number, i in enumerate(batches):
        work.join(lhs, i, results[0], number)
    place = len(batches)
    for side, taken in ((lhs, {*batches, *left}), (rhs, {*others, *right})):
        for i in range(len(side.sizes)):
            if i not in taken:
                work.join(side, i, results[0], place)
                place += 1


def _convolution(work: Joined, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    labels = x.attributes.get("dim_labels")
    if not isinstance(labels, ConvolutionLabels):
        return
    lhs, rhs = operands[:2]
    work.join(lhs, labels.lhs.index("b"), results[0], labels.out.index("b"))
    work.join(lhs, labels.lhs.index("f"), rhs, labels.rhs.index("i"))
    work.join(rhs, labels.rhs.index("o"), results[0], labels.out.index("f"))


def _window(work: Joined, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    """Dimensions over which no window goes are the same in all that have their size."""
    sizes = [w.size for w in x.attributes.window().dimensions]
    for value in (*results[1:], *operands):
        if len(value.sizes) == len(sizes) == len(results[0].sizes):
            for i, size in enumerate(sizes):
                if size == 1 and value.sizes[i] == results[0].sizes[i]:
                    work.join(value, i, results[0], i)


def _select_and_scatter(
    work: Joined, x: Instruction, results: list[Value], operands: list[Value]
) -> None:
    work.join_equal(operands[0], results[0])
    _window(work, x, results, operands[1:2])


def _concatenate(work: Joined, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    (along,) = x.attributes.integers("dimensions")
    for value in operands:
        for i in range(len(value.sizes)):
            if i != along:
                work.join(value, i, results[0], i)


def _first_like(work: Joined, _: Instruction, results: list[Value], operands: list[Value]) -> None:
    """Join the operands with the result where their sizes agree."""
    for value in operands:
        work.join_equal(value, results[0])


def _gather(work: Joined, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    attributes = x.attributes
    offsets = attributes.integers("offset_dims")
    hidden = {*attributes.integers("collapsed_slice_dims")}
    hidden |= {*attributes.integers("operand_batching_dims")}
    kept = [d for d in range(len(operands[0].sizes)) if d not in hidden]
    slices = attributes.integers("slice_sizes")
    for place, d in zip(offsets, kept, strict=False):
        if slices[d] == operands[0].sizes[d]:
            work.join(operands[0], d, results[0], place)
    _join_rows(work, x, results[0], operands[1], set(offsets))
    pairs = zip(
        attributes.integers("operand_batching_dims"),
        attributes.integers("start_indices_batching_dims"),
        strict=False,
    )
    for d, i in pairs:
        work.join(operands[0], d, operands[1], i)


def _join_rows(
    work: Joined, x: Instruction, value: Value, indices: Value, windows: set[int]
) -> None:
    """Join the dimensions of indices with those of a value that are no windows."""
    vector = x.attributes.integer("index_vector_dim")
    places = [p for p in range(len(value.sizes)) if p not in windows]
    rows = [d for d in range(len(indices.sizes)) if d != vector]
    for place, d in zip(places, rows, strict=False):
        work.join(indices, d, value, place)


def _scatter(work: Joined, x: Instruction, results: list[Value], operands: list[Value]) -> None:
    count = len(operands) // 2
    indices, updates = operands[count], operands[count + 1 :]
    attributes = x.attributes
    windows = attributes.integers("update_window_dims")
    hidden = {*attributes.integers("inserted_window_dims")}
    hidden |= {*attributes.integers("input_batching_dims")}
    kept = [d for d in range(len(operands[0].sizes)) if d not in hidden]
    for value, result in zip(operands[:count], results, strict=False):
        work.join_equal(value, result)
    for update in updates:
        for place, d in zip(windows, kept, strict=False):
            if update.sizes[place] == operands[0].sizes[d]:
                work.join(update, place, operands[0], d)
        _join_rows(work, x, update, indices, set(windows))


_LIKE = frozenset(
    {name for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits}
    | set(
        "copy reverse sort map bitcast-convert reduce-precision opt-barrier domain select clamp "
        "cholesky topk".split()
    )
)
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_LIKE, _like),
    "broadcast": _broadcast,
    "transpose": _transpose,
    "reduce": _reduce,
    "dot": _dot,
    "convolution": _convolution,
    "reduce-window": _window,
    "select-and-scatter": _select_and_scatter,
    "concatenate": _concatenate,
    "gather": _gather,
    "scatter": _scatter,
    **dict.fromkeys(
        "pad slice dynamic-slice dynamic-update-slice batch-norm-training batch-norm-inference "
        "batch-norm-grad triangular-solve".split(),
        _first_like,
    ),
}
"""By opcode; results and operands are arrays, a tuple's elements each its own."""
