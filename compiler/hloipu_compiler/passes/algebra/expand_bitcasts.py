"""Expands bitcasts between layouts to transposes and reshapes.

After this no value depends on a layout, and passes may put one value in another's place although
their layouts differ.
"""

from math import prod
from typing import ClassVar

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Layout
from hloipu_compiler.passes.framework.pass_base import NO_BITCASTS, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, rewritten, with_each
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.element_types import ElementType, Kind
from hloipu_runtime.frozen import dataclass


def bitcasts_expanded(module: Module) -> Module:
    """Return the module without bitcasts of arrays; the same one where there are none."""
    return with_each(module, lambda c: rewritten(module, c, {"bitcast": _expanded}))


def _expanded(draft: Draft, op: Instruction) -> int | Instruction | None:
    """Lay the operand out row-major in its order of memory, and read that in the result's order."""
    # Layouts are those of the operand as written: another value may stand in its place by now.
    before, after = draft.old[op.name], op.shape
    source = draft.old.instructions[before.operands[0]].shape
    if not isinstance(source, ArrayShape) or not isinstance(after, ArrayShape):
        return None
    if source.dynamic or after.dynamic or not _convertible(source, after):
        return None
    if source.dimensions == after.dimensions and memory_order(source) == memory_order(after):
        if source.element_type is after.element_type:
            return op.operands[0]
        return op._replace(opcode="bitcast-convert", start=-1, end=-1)
    at = transposed(draft, op, op.operands[0], source, memory_order(source))
    if source.element_type is not after.element_type:
        at = _reinterpreted(draft, op, at, source, after)
    order = memory_order(after)
    stored = tuple(after.dimensions[d] for d in order)
    at = reshaped(draft, op, at, plain(after.element_type, stored))
    back = tuple(sorted(range(after.rank), key=order.__getitem__))
    at = transposed(draft, op, at, plain(after.element_type, stored), back)
    last = draft.made[at]
    # The result keeps its name and its layout, which whoever reads it may state again.
    if at == op.operands[0] or at != len(draft.made) - 1:
        return at
    draft.made.pop()
    return last._replace(name=op.name, shape=after, metadata=op.metadata)


def _convertible(source: ArrayShape, after: ArrayShape) -> bool:
    a, b = source.element_type, after.element_type
    if a is b:
        return source.element_count == after.element_count
    if Kind.PREDICATE in (a.kind, b.kind) or not (a.is_array and b.is_array):
        return False
    wide, narrow = max(a.bits, b.bits), min(a.bits, b.bits)
    return wide % narrow == 0 and source.element_count * a.bits == after.element_count * b.bits


def memory_order(shape: ArrayShape) -> tuple[int, ...]:
    """Return the dimensions from major to minor."""
    if shape.layout is None:
        return tuple(range(shape.rank))
    return tuple(reversed(shape.layout.minor_to_major))


def plain(element_type: ElementType, sizes: tuple[int, ...]) -> ArrayShape:
    """Return a static shape in row-major layout."""
    layout = Layout(tuple(range(len(sizes) - 1, -1, -1))) if sizes else None
    return ArrayShape(element_type, sizes, layout)


def transposed(
    draft: Draft, op: Instruction, at: int, shape: ArrayShape, order: tuple[int, ...]
) -> int:
    """Append what puts the dimensions of a value of this shape in another order, if it is one."""
    if order == tuple(range(len(order))):
        return at
    sizes = tuple(shape.dimensions[d] for d in order)
    return draft.add(
        op, "transpose", plain(shape.element_type, sizes), (at,), Attributes({"dimensions": order})
    )


def reshaped(draft: Draft, op: Instruction, at: int, wanted: ArrayShape) -> int:
    """Append what gives a value other sizes, if it has not got them."""
    shape = draft.shape(at)
    if isinstance(shape, ArrayShape) and shape.dimensions == wanted.dimensions:
        return at
    return draft.add(op, "reshape", wanted, (at,))


def _reinterpreted(
    draft: Draft, op: Instruction, at: int, source: ArrayShape, after: ArrayShape
) -> int:
    """Convert the bits of row-major elements; widths that differ meet in a minor dimension."""
    a, b = source.element_type, after.element_type
    sizes: tuple[int, ...] = tuple(source.dimensions[d] for d in memory_order(source))
    count = prod(sizes)
    if a.bits < b.bits:
        ratio = b.bits // a.bits
        at = reshaped(draft, op, at, plain(a, (count // ratio, ratio)))
        sizes = (count // ratio,)
    elif a.bits > b.bits:
        at = reshaped(draft, op, at, plain(a, (count,)))
        sizes = (count, a.bits // b.bits)
    return draft.add(op, "bitcast-convert", plain(b, sizes), (at,))


@register
@dataclass(frozen=True, slots=True)
class ExpandBitcasts(Pass):
    """Writes bitcasts out as transposes and reshapes, so that no value depends on a layout."""

    name: ClassVar[str] = "expand-bitcasts"
    establishes: ClassVar[Facts] = frozenset({NO_BITCASTS})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module without bitcasts."""
        return bitcasts_expanded(module), plan
