"""Folds transposes into neighbouring dots, convolutions, reductions and broadcasts.

And reverses of kernels into convolutions.

Products, convolutions, reductions and broadcasts name their dimensions, so that they need other
names only. A product transposed as a whole is the product of its operands the other way round.
Elementwise ops whose operands are all transposed alike are done before.

Convolutions whose windows of one element read what is dilated, as in the gradients of strided 1x1
convolutions, convolve elements alone; what comes of holes is padded.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from hloipu_compiler.ir.attributes import Attributes, ConvolutionLabels, PaddingDimension, Window
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.ops import OPS, PRODUCTS, Trait
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.algebra.movement import became, static, with_window
from hloipu_compiler.passes.framework.rewriting import Draft, Rule
from hloipu_runtime.element_types import Kind
from hloipu_runtime.kernels.windows_geometry import WindowDimension

_SAID_OF_RESULT = frozenset({"sharding", "control-predecessors", "sparsity"})
_SIDES = ("lhs", "rhs")


def is_folded(computation: Computation, position: int) -> bool:
    """Whether a value is a transpose that only products read, which take it as it was before."""
    users = [computation.instructions[user].opcode for user in computation.users[position]]
    is_transpose = computation.instructions[position].opcode == "transpose"
    return is_transpose and PRODUCTS.issuperset(users)


def _order(draft: Draft, at: int) -> tuple[int, ...] | None:
    """Return a transpose's order of dimensions; None of any other op."""
    op = draft.made[at]
    if op.opcode != "transpose" or "sharding" in op.attributes or static(op.shape) is None:
        return None
    return op.attributes.integers("dimensions")


def _before(draft: Draft, at: int) -> int:
    return draft.made[at].operands[0]


def _dot(draft: Draft, op: Instruction) -> Instruction | None:
    """Multiply what was not transposed yet; its free dimensions must come in the same order."""
    if len(op.operands) != 2 or not _SAID_OF_RESULT.isdisjoint(op.attributes):
        return None
    operands = list(op.operands)
    changes: dict[str, tuple[int, ...]] = {}
    for number, side in enumerate(_SIDES):
        order = _order(draft, op.operands[number])
        if order is None:
            continue
        batch = op.attributes.integers(f"{side}_batch_dims")
        contracting = op.attributes.integers(f"{side}_contracting_dims")
        free = [order[d] for d in range(len(order)) if d not in (*batch, *contracting)]
        if free != sorted(free):
            continue
        operands[number] = _before(draft, op.operands[number])
        changes[f"{side}_contracting_dims"] = tuple(order[d] for d in contracting)
        if batch:
            changes[f"{side}_batch_dims"] = tuple(order[d] for d in batch)
    if not changes:
        return None
    attributes = op.attributes.replaced(**changes)
    return op._replace(operands=tuple(operands), attributes=attributes, start=-1, end=-1)


def _convolution(draft: Draft, op: Instruction) -> Instruction | None:
    """Name the dimensions of what was not transposed yet."""
    labels = op.attributes.get("dim_labels")
    if not isinstance(labels, ConvolutionLabels):
        return None
    operands = list(op.operands)
    for number, side in enumerate(_SIDES):
        order = _order(draft, op.operands[number])
        if order is not None:
            operands[number] = _before(draft, op.operands[number])
            names = _reordered(getattr(labels, side), order)
            labels = replace(labels, **{side: names})
    if tuple(operands) == op.operands:
        return _convolution_of_points(draft, op, labels)
    attributes = op.attributes.replaced(dim_labels=labels)
    return op._replace(operands=tuple(operands), attributes=attributes, start=-1, end=-1)


def _convolution_of_points(
    draft: Draft, op: Instruction, labels: ConvolutionLabels
) -> Instruction | None:
    """Convolve before elements are spread, where windows read a single one, or padding alone."""
    image, shape = static(draft.shape(op.operands[0])), static(op.shape)
    window = op.attributes.window().dimensions
    spread = [w.size == w.stride == 1 < w.base_dilation for w in window]
    if shape is None or image is None or not any(spread) or "sharding" in op.attributes:
        return None
    sizes, dimensions = list(shape.dimensions), list(window)
    padding = [PaddingDimension(0, 0)] * shape.rank
    for number, (w, is_spread) in enumerate(zip(window, spread, strict=True)):
        if is_spread:
            at = labels.out.index(str(number))
            sizes[at] = image.dimensions[labels.lhs.index(str(number))]
            padding[at] = PaddingDimension(w.pad_low, w.pad_high, w.base_dilation - 1)
            dimensions[number] = WindowDimension(1, reversal=w.reversal)
    few = ArrayShape(shape.element_type, tuple(sizes))
    attributes = with_window(op.attributes, Window(tuple(dimensions)))
    name = draft.fresh_name(op.name)
    points = draft.append(
        op._replace(name=name, shape=few, attributes=attributes, start=-1, end=-1)
    )
    literal = Literal("(0, 0)" if shape.element_type.kind is Kind.COMPLEX else "0")
    zero = draft.add(op, "constant", ArrayShape(shape.element_type), literal=literal)
    return became(op, "pad", (points, zero), padding=tuple(padding))


def _reversed_kernel(draft: Draft, op: Instruction) -> Instruction | None:
    """Read a kernel from its ends, in place of a reversed one: gradients of inputs do so."""
    labels, window = op.attributes.get("dim_labels"), op.attributes.get("window")
    source = draft.made[op.operands[1]]
    if source.opcode != "reverse" or "sharding" in source.attributes:
        return None
    if not isinstance(labels, ConvolutionLabels) or not isinstance(window, Window):
        return None
    names = [labels.rhs[d] for d in source.attributes.integers("dimensions")]
    if not all(name.isdigit() for name in names):
        return None
    turned = set(map(int, names))
    dimensions = tuple(
        replace(each, reversal=each.reversal != (number in turned))
        for number, each in enumerate(window.dimensions)
    )
    attributes = op.attributes.replaced(window=Window(dimensions))
    operands = (op.operands[0], source.operands[0])
    return op._replace(operands=operands, attributes=attributes, start=-1, end=-1)


def _reordered(names: str, order: Sequence[int]) -> str:
    """Return names for dimensions before a transposition, from those after it."""
    reordered = [""] * len(order)
    for name, d in zip(names, order, strict=True):
        reordered[d] = name
    return "".join(reordered)


def _transpose(draft: Draft, op: Instruction) -> Instruction | None:
    """Make a product or a convolution in the order of dimensions that its only reader wants."""
    shape = static(op.shape)
    source = draft.made[op.operands[0]]
    if (
        shape is None
        or not _is_read_once(draft)
        or not _SAID_OF_RESULT.isdisjoint((*source.attributes, *op.attributes))
    ):
        return None
    order = op.attributes.integers("dimensions")
    reordered = ArrayShape(shape.element_type, shape.dimensions)
    labels = source.attributes.get("dim_labels")
    if source.opcode == "convolution" and isinstance(labels, ConvolutionLabels):
        out = "".join(labels.out[d] for d in order)
        attributes = source.attributes.replaced(dim_labels=replace(labels, out=out))
        return op._replace(
            opcode="convolution", shape=reordered, operands=source.operands,
            attributes=attributes, start=-1, end=-1,
        )  # fmt: skip
    if source.opcode != "dot" or len(source.operands) != 2:
        return None
    batch = len(source.attributes.integers("lhs_batch_dims"))
    lhs = static(draft.shape(source.operands[0]))
    if lhs is None:
        return None
    rows = len(lhs.dimensions) - batch - len(source.attributes.integers("lhs_contracting_dims"))
    rank = len(order)
    swapped = (*range(batch), *range(batch + rows, rank), *range(batch, batch + rows))
    if tuple(order) != swapped:
        return None
    renamed = {_other_side(key): value for key, value in source.attributes.items()}
    return op._replace(
        opcode="dot", shape=reordered, operands=source.operands[::-1],
        attributes=Attributes(renamed), start=-1, end=-1,
    )  # fmt: skip


def _other_side(key: str) -> str:
    for one, other in (_SIDES, _SIDES[::-1]):
        if key.startswith(f"{one}_"):
            return other + key[len(one) :]
    return key


def _is_read_once(draft: Draft) -> bool:
    """Whether nobody but this instruction reads its operand, in the old computation."""
    position = len(draft.place)
    source = draft.old.instructions[position].operands[0]
    return draft.old.users[source] == (position,) and draft.old.root != source


def _reduce(draft: Draft, op: Instruction) -> Instruction | None:
    """Reduce what was not transposed yet, if the dimensions left come in the same order."""
    order = _order(draft, op.operands[0]) if len(op.operands) == 2 else None
    if order is None or "sharding" in op.attributes:
        return None
    reduced = op.attributes.integers("dimensions")
    left = [order[d] for d in range(len(order)) if d not in reduced]
    if left != sorted(left):
        return None
    attributes = op.attributes.replaced(dimensions=tuple(sorted(order[d] for d in reduced)))
    operands = (_before(draft, op.operands[0]), op.operands[1])
    return op._replace(operands=operands, attributes=attributes, start=-1, end=-1)


def _elementwise(draft: Draft, op: Instruction) -> Instruction | None:
    """Do an op on what its operands were before all were transposed alike."""
    shape = static(op.shape)
    if shape is None or len(shape.dimensions) < 2 or not prod(shape.dimensions):
        return None
    if not _SAID_OF_RESULT.isdisjoint(op.attributes):
        return None
    order = next((o for at in op.operands if (o := _order(draft, at)) is not None), None)
    if order is None:
        return None
    inverse = {d: place for place, d in enumerate(order)}
    sizes = tuple(shape.dimensions[inverse[d]] for d in range(len(order)))
    for at in op.operands:
        operand = draft.made[at]
        is_number = isinstance(operand.shape, ArrayShape) and not operand.shape.dimensions
        if not is_number and operand.opcode != "broadcast" and _order(draft, at) != order:
            return None
    operands = []
    for at in op.operands:
        operand = draft.made[at]
        if operand.opcode == "transpose":
            at = _before(draft, at)
        elif operand.opcode == "broadcast" and isinstance(operand.shape, ArrayShape):
            dimensions = tuple(order[d] for d in operand.attributes.integers("dimensions"))
            turned = ArrayShape(operand.shape.element_type, sizes)
            own = Attributes({"dimensions": dimensions})
            at = draft.add(operand, "broadcast", turned, operand.operands, own)
        operands.append(at)
    inner = draft.add(op, op.opcode, ArrayShape(shape.element_type, sizes), operands, op.attributes)
    return became(op, "transpose", (inner,), dimensions=order)


KERNEL_RULES: dict[str, Rule] = {"convolution": _reversed_kernel}
TRANSPOSE_RULES: dict[str, Rule] = {
    **{
        name: _elementwise
        for name, op in OPS.items()
        if Trait.ELEMENTWISE in op.traits and not op.traits & (Trait.LEGACY | Trait.RANDOM)
    },
    "dot": _dot,
    "convolution": _convolution,
    "transpose": _transpose,
    "reduce": _reduce,
}
