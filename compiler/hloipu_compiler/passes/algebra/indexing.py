"""Rewrites gathers and scatters at one constant place as slices and updates.

A gather clamps its place so that the window lies inside; a scatter leaves a window out that does
not (openxla/xla `xla/hlo/evaluator/hlo_evaluator.cc`, HandleGather and HandleScatter).

Scatters of one element to each row become comparisons. The gradient of a loss that reads one logit
of each row adds one number to each row of zeros: as a scatter it needs whole rows on a tile, and an
array for itself; as a choice by comparison it is where its reader wants it, and fuses with that.
The sum of such a row, which the gradient of log_softmax takes, is zero and the number.
"""

from math import prod
from typing import ClassVar, NamedTuple

from hloipu_compiler.ir.attributes import Attributes, SliceRange
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.algebra.expand_bitcasts import plain
from hloipu_compiler.passes.algebra.frames import framed
from hloipu_compiler.passes.algebra.movement import (
    became,
    repeating,
    same_value_shape,
    spread,
    static,
)
from hloipu_compiler.passes.framework.constant_values import constant_array
from hloipu_compiler.passes.framework.pass_base import NO_DEAD_CODE, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, Rule, rewritten_in_place
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.element_types import PRED, S32, ElementType, Kind
from hloipu_runtime.frozen import dataclass

LARGEST_START = 2**31 - 1
"""Starts are written as s32."""


def _only_place(draft: Draft, at: int, index_vector_dim: int) -> list[int] | None:
    """Return the one index vector that constant numbers are; None where there are several.

    One whose numbers are equal may be a broadcast of that number.
    """
    repeated, shape = repeating(draft, at), static(draft.shape(at))
    op = draft.made[at if repeated is None else repeated.operands[0]]
    if shape is None or op.opcode != "constant":
        return None
    rest = [size for d, size in enumerate(shape.dimensions) if d != index_vector_dim]
    values = constant_array(op)
    if prod(rest) != 1 or values is None or values.size not in (1, shape.element_count):
        return None
    numbers = [int(value) for value in values.reshape(-1)]
    return numbers * (shape.element_count // values.size)


def _gather(draft: Draft, op: Instruction) -> Instruction | None:
    read = op.attributes.integers
    source, shape = static(draft.shape(op.operands[0])), static(op.shape)
    place = _only_place(draft, op.operands[1], op.attributes.integer("index_vector_dim"))
    sizes = read("slice_sizes")
    if place is None:
        return framed(draft, op)
    if source is None or shape is None or read("operand_batching_dims"):
        return None
    if len(sizes) != source.rank or prod(sizes) != shape.element_count:
        return None
    starts = [0] * source.rank
    for dimension, start in zip(read("start_index_map"), place, strict=True):
        starts[dimension] = min(max(start, 0), source.dimensions[dimension] - sizes[dimension])
    at = _sliced(draft, op, op.operands[0], starts, sizes)
    return became(op, "reshape", (at,))


def _sliced(
    draft: Draft, op: Instruction, at: int, starts: list[int], sizes: tuple[int, ...]
) -> int:
    shape = draft.shape(at)
    if not isinstance(shape, ArrayShape) or shape.dimensions == sizes:
        return at
    given = tuple(SliceRange(a, a + n) for a, n in zip(starts, sizes, strict=True))
    wanted = plain(shape.element_type, sizes)
    return draft.add(op, "slice", wanted, (at,), Attributes({"slice": given}))


def _scatter(draft: Draft, op: Instruction) -> int | Instruction | None:
    read = op.attributes.integers
    if len(op.operands) != 3 or read("input_batching_dims"):
        return None
    whole, update = static(draft.shape(op.operands[0])), static(draft.shape(op.operands[2]))
    place = _only_place(draft, op.operands[1], op.attributes.integer("index_vector_dim"))
    if whole is None or update is None or place is None or "sharding" in op.attributes:
        return None
    window = iter([update.dimensions[d] for d in read("update_window_dims")])
    inserted = read("inserted_window_dims")
    sizes = tuple(1 if d in inserted else next(window) for d in range(whole.rank))
    starts = [0] * whole.rank
    for dimension, start in zip(read("scatter_dims_to_operand_dims"), place, strict=True):
        starts[dimension] = start
    if not same_value_shape(draft, op, op.operands[0]):
        return None
    outside = any(
        a < 0 or a + n > size for a, n, size in zip(starts, sizes, whole.dimensions, strict=True)
    )
    if outside or update.element_count == 0:
        return op.operands[0]
    combined = _combined(draft, op, starts, sizes, whole)
    if combined is None or max(starts, default=0) > LARGEST_START:
        return None
    numbers = [
        draft.add(op, "constant", ArrayShape(S32), literal=Literal(str(start))) for start in starts
    ]
    return became(op, "dynamic-update-slice", (op.operands[0], combined, *numbers))


def _combined(
    draft: Draft, op: Instruction, starts: list[int], sizes: tuple[int, ...], whole: ArrayShape
) -> int | None:
    """Append what is to be written; None where the region is more than one op."""
    how = _single_op(draft.module.computation[op.attributes.called[0]])
    update_shape = draft.shape(op.operands[2])
    if how is None or not isinstance(update_shape, ArrayShape):
        return None
    if update_shape.element_type is not whole.element_type:
        return None
    opcode, order = how
    wanted, at = plain(whole.element_type, sizes), op.operands[2]
    if update_shape.dimensions != sizes:
        at = draft.add(op, "reshape", wanted, (at,))
    if not opcode:
        return at
    before = _sliced(draft, op, op.operands[0], starts, sizes)
    sides = (before, at)
    return draft.add(op, opcode, wanted, (sides[order[0]], sides[order[1]]))


def _single_op(region: Computation) -> tuple[str, tuple[int, int]] | None:
    """Return the op that a region is and its operands' parameters; no op where it overwrites."""
    root = region.instructions[region.root]
    if root.parameter_number == 1:
        return "", (0, 1)
    if len(region.instructions) != 3 or len(root.operands) != 2:
        return None
    if root.attributes.keys() - {"frontend_attributes"}:  # which say no more than the op's stage
        return None
    if root.opcode not in ELEMENTWISE or root.shape != region.instructions[0].shape:
        return None
    a, b = (region.instructions[i].parameter_number for i in root.operands)
    return (root.opcode, (a, b)) if a >= 0 and b >= 0 else None


INDEXING_RULES: dict[str, Rule] = {"gather": _gather, "scatter": _scatter}


class _RowScatter(NamedTuple):
    """A scatter that changes at most one element of each row along one dimension."""

    along: int
    indices: tuple[int, ...]
    """Dimensions of the operand that those of the indices go along, but for those of size 1."""
    updates: tuple[int, ...]
    """The same, of the updates."""


def _row_scatter(draft: Draft, op: Instruction) -> _RowScatter | None:
    """Return how a scatter changes one element of each row; None for one that may change more."""
    read = op.attributes.integers
    along, batch = read("scatter_dims_to_operand_dims"), read("input_batching_dims")
    shapes = [static(draft.shape(at)) for at in op.operands]
    if len(along) != 1 or len(shapes) != 3 or "sharding" in op.attributes:
        return None
    whole, indices, updates = shapes
    if whole is None or indices is None or updates is None:
        return None
    batch_of = dict(zip(read("scatter_indices_batching_dims"), batch, strict=True))
    vector = op.attributes.integer("index_vector_dim")
    from_indices = [batch_of.get(d, along[0]) for d in range(indices.rank) if d != vector]
    gone = {*read("inserted_window_dims"), *batch}
    rest = iter([d for d in range(whole.rank) if d not in gone])
    places = iter(from_indices)
    windows = read("update_window_dims")
    from_updates = [next(rest if d in windows else places) for d in range(updates.rank)]
    batch_of_each = []
    sizes = [size for d, size in enumerate(indices.dimensions) if d != vector]
    for dimensions, lengths in ((from_indices, sizes), (from_updates, updates.dimensions)):
        pairs = list(zip(dimensions, lengths, strict=True))
        kept = tuple(d for d, _ in pairs if d != along[0])
        wanted = [1 if d == along[0] else whole.dimensions[d] for d in dimensions]
        if list(lengths) != wanted or list(kept) != sorted(kept):
            return None
        batch_of_each.append(kept)
    return _RowScatter(along[0], batch_of_each[0], batch_of_each[1])


def _compared(draft: Draft, op: Instruction) -> Instruction | None:
    """Make a choice by comparison of a scatter of one element a row to what a scalar fills.

    Places outside are equal to no place, as a scatter leaves out what lies outside.
    """
    how = _row_scatter(draft, op)
    whole = static(op.shape)
    filled = repeating(draft, op.operands[0])
    if how is None or whole is None or filled is None or filled.attributes.integers("dimensions"):
        return None
    region = _single_op(draft.module.computation[op.attributes.called[0]])
    index, update = static(draft.shape(op.operands[1])), static(draft.shape(op.operands[2]))
    if region is None or index is None or update is None:
        return None
    kind, values = index.element_type, whole.element_type
    if update.element_type is not values or not _numbers(kind, whole.dimensions[how.along]):
        return None

    small = plain(values, tuple([whole.dimensions[d] for d in how.updates]))
    new = draft.add(op, "reshape", small, op.operands[2:])
    opcode, order = region
    if opcode:
        sides = spread(draft, op, filled.operands[0], small), new
        new = draft.add(op, opcode, small, (sides[order[0]], sides[order[1]]))
    rows = plain(kind, tuple([whole.dimensions[d] for d in how.indices]))
    wanted = draft.add(op, "reshape", rows, (op.operands[1],))
    line = plain(kind, (whole.dimensions[how.along],))
    places = draft.add(op, "iota", line, (), Attributes({"iota_dimension": 0}))
    of_indices = plain(kind, whole.dimensions)
    both = (
        spread(draft, op, places, of_indices, (how.along,)),
        spread(draft, op, wanted, of_indices, how.indices),
    )
    is_there = plain(PRED, whole.dimensions)
    chosen = draft.add(op, "compare", is_there, both, Attributes({"direction": "EQ"}))
    given = spread(draft, op, new, plain(values, whole.dimensions), how.updates)
    return became(op, "select", (chosen, given, op.operands[0]))


def _numbers(kind: ElementType, count: int) -> bool:
    """Whether a type has an integer for each of so many places, of which there are some."""
    bits = kind.bits - (kind.kind is Kind.SIGNED)
    return kind.is_integer and not (count - 1) >> bits


def _only_addend(draft: Draft, op: Instruction) -> Instruction | None:
    """Make what a row of zeros was given of the row's sum, or zero where its place is outside."""
    dimensions, shape = op.attributes.integers("dimensions"), static(op.shape)
    region = _single_op(draft.module.computation[op.attributes.called[0]])
    if shape is None or len(op.operands) != 2 or "sharding" in op.attributes:
        return None
    if len(dimensions) != 1 or region is None or region[0] != "add":
        return None
    source = draft.made[op.operands[0]]
    is_negative = source.opcode == "negate"
    chosen = draft.made[source.operands[0]] if is_negative else source
    if chosen.opcode != "select":
        return None
    asked, given, filled = (draft.made[at] for at in chosen.operands)
    if asked.opcode != "compare" or asked.attributes.text("direction") != "EQ":
        return None
    places, wanted = (draft.made[at] for at in asked.operands)
    if any(repeating(draft, at) is None for at in (*asked.operands, *chosen.operands[1:])):
        return None
    (along,) = dimensions
    line, rows = draft.made[places.operands[0]], static(draft.shape(wanted.operands[0]))
    of = [x.attributes.integers("dimensions") for x in (places, wanted, given)]
    if line.opcode != "iota" or of[0] != dimensions or rows is None:
        return None
    zeros = [draft.made[at] for at in (filled.operands[0], op.operands[1])]
    if along in of[1] or along in of[2] or not all(map(_is_zero, zeros)):
        return None

    kind, length = rows.element_type, static(line.shape)
    # A float between two places is equal to neither, and where numbers wrap two places are equal.
    if length is None or not _numbers(kind, length.dimensions[0]):
        return None
    left = [tuple([d - (d > along) for d in each]) for each in of[1:]]
    place = spread(draft, op, wanted.operands[0], plain(kind, shape.dimensions), left[0])
    is_inside = [
        _compared_with(draft, op, place, number, direction)
        for number, direction in ((0, "GE"), (length.dimensions[0] - 1, "LE"))
    ]
    is_there = draft.add(op, "and", plain(PRED, shape.dimensions), is_inside)
    addend = spread(draft, op, given.operands[0], shape, left[1])
    if is_negative:
        addend = draft.add(op, "negate", shape, (addend,))
    nothing = spread(draft, op, op.operands[1], shape)
    total = draft.add(op, "select", shape, (is_there, addend, nothing))
    return became(op, "add", (total, nothing))  # which makes a zero of a negative zero


def _is_zero(op: Instruction) -> bool:
    """Whether a constant is zero, and no negative one."""
    values = constant_array(op) if op.opcode == "constant" else None
    return values is not None and not any(values.tobytes())


def _compared_with(draft: Draft, op: Instruction, at: int, number: int, direction: str) -> int:
    """Append whether integers compare so with a number of their type."""
    shape = static(draft.shape(at))
    assert shape is not None
    only = ArrayShape(shape.element_type)
    constant = draft.add(op, "constant", only, literal=Literal(str(number)))
    both = (at, spread(draft, op, constant, shape))
    return draft.add(
        op, "compare", plain(PRED, shape.dimensions), both, Attributes({"direction": direction})
    )


@register
@dataclass(frozen=True, slots=True)
class CompareScattered(Pass):
    """Makes comparisons of scatters of one element a row to what a scalar fills, and no sums."""

    # Runs after steps are cut: what is gradient and what update is told by the ops of the text.
    name: ClassVar[str] = "compare-scattered"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module without such scatters, new ops on the IPUs of these."""
        return rewritten_in_place(
            module, plan, lambda _: {"scatter": _compared, "reduce": _only_addend}
        )
