"""Makes asynchronous collectives and copies synchronous.

The machine computes, synchronises and exchanges in turn: nothing runs beside an exchange, so that
the pair of a start and a done says no more than the plain op at the place of the start.
"""

from typing import ClassVar

from hloipu_compiler.ir.attributes import NO_ATTRIBUTES
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, compatible
from hloipu_compiler.passes.algebra.expand_bitcasts import bitcasts_expanded
from hloipu_compiler.passes.framework.pass_base import (
    NO_BITCASTS,
    NO_DEAD_CODE,
    TRIP_COUNTS,
    Facts,
    Pass,
)
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, Rule, rewritten, with_each
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass

_ZERO = Literal("0")


def made_synchronous(module: Module) -> Module:
    """Return the module without native pairs of starts and dones; the same one if there are none.

    The generic `async-start` is for `inline-calls`; sends and receives stay as they are.
    """
    module = bitcasts_expanded(module)
    return with_each(module, lambda c: rewritten(module, c, RULES))


def _all_reduce_start(_: Draft, op: Instruction) -> Instruction:
    """Reduce at once: the start has the shape of the result."""
    return op._replace(opcode="all-reduce", start=-1, end=-1)


def _all_reduce_done(draft: Draft, op: Instruction) -> int | None:
    return op.operands[0] if draft.made[op.operands[0]].opcode == "all-reduce" else None


def _start(draft: Draft, op: Instruction) -> Instruction | None:
    """Put (operands, result, contexts…) together, the result computed at once."""
    shape = op.shape
    if not isinstance(shape, TupleShape) or shape.has_buffer or len(shape.elements) < 2:
        return None
    contexts = shape.elements[2:]
    if "slice_sizes" in op.attributes or not all(map(_is_context, contexts)):
        return None
    result = draft.append(
        op._replace(
            name=draft.fresh_name(op.name), opcode=op.opcode.removesuffix("-start"),
            shape=shape.elements[1], start=-1, end=-1,
        )
    )  # fmt: skip
    given = op.operands[0]
    if len(op.operands) > 1:
        given = draft.add(op, "tuple", shape.elements[0], op.operands)
    handles = [draft.add(op, "constant", context, literal=_ZERO) for context in contexts]
    return _tuple(op, (given, result, *handles))


def _is_context(shape: Shape) -> bool:
    return isinstance(shape, ArrayShape) and shape.is_scalar and shape.element_type.is_integer


def _copy_start(draft: Draft, op: Instruction) -> Instruction | None:
    """Put (copy, source, context) together: the copy is the source."""
    shape, operand = op.shape, op.operands[0]
    if not isinstance(shape, TupleShape) or len(shape.elements) != 3 or shape.has_buffer:
        return None
    if not all(compatible(e, draft.shape(operand)) for e in shape.elements[:2]):
        return None
    context = draft.add(op, "constant", shape.elements[2], literal=_ZERO)
    return _tuple(op, (operand, operand, context))


def _tuple(op: Instruction, operands: tuple[int, ...]) -> Instruction:
    return op._replace(
        opcode="tuple", operands=operands, attributes=NO_ATTRIBUTES, backend_config="",
        start=-1, end=-1,
    )  # fmt: skip


def _done_at(index: int) -> Rule:
    def done(draft: Draft, op: Instruction) -> int | None:
        source = draft.made[op.operands[0]]
        return source.operands[index] if source.opcode == "tuple" else None

    return done


RULES: dict[str, Rule] = {
    "all-reduce-start": _all_reduce_start,
    "all-reduce-done": _all_reduce_done,
    "all-gather-start": _start,
    "all-gather-done": _done_at(1),
    "collective-permute-start": _start,
    "collective-permute-done": _done_at(1),
    "copy-start": _copy_start,
    "copy-done": _done_at(0),
}


@register
@dataclass(frozen=True, slots=True)
class MakeSynchronous(Pass):
    """Does at once what collectives and copies start and finish apart."""

    name: ClassVar[str] = "make-synchronous"
    establishes: ClassVar[Facts] = frozenset({NO_BITCASTS})
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE, TRIP_COUNTS})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module without starts and dones."""
        return made_synchronous(module), plan
