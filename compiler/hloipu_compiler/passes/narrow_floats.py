"""Converts a module to half precision, to estimate its cost.

Values change, and so do the types of parameters and results: this is an edit of the model, tried
out before anyone makes it. Ops that see the bits of a float, or whose code is not ours, keep their
type, with conversions around them.
"""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, leaves
from hloipu_compiler.passes.framework.attribute_edits import without
from hloipu_compiler.passes.framework.constant_values import constant_array
from hloipu_compiler.passes.framework.pass_base import NO_DEAD_CODE, TRIP_COUNTS, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, with_operands
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.element_types import ELEMENT_TYPES, F32, ElementType
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.storage import to_storage

_AS_WRITTEN = frozenset(
    "bitcast-convert custom-call rng-bit-generator rng rng-get-and-update-state cholesky "
    "triangular-solve fft reduce-precision".split()
)
"""Ops that mean something else at another width, or have no form of 16 bits."""
_NARROW = ("f16", "bf16")


def floats_narrowed(module: Module, kind: str) -> Module:
    """Return the module with every f32 as `kind`; the same one where it cannot be.

    That is where there are none, or where complex numbers or tuples of floats of ops that stay as
    they are would have to change, too.
    """
    narrow = ELEMENT_TYPES[kind]
    shapes = {op.shape for c in module.computations for op in c.instructions}
    kinds = {
        leaf.element_type for s in shapes for _, leaf in leaves(s) if isinstance(leaf, ArrayShape)
    }
    if F32 not in kinds or any(k.is_complex for k in kinds):
        return module
    stays = [op for c in module.computations for op in c.instructions if op.opcode in _AS_WRITTEN]
    if any(
        isinstance(op.shape, TupleShape) and _narrowed(op.shape, narrow) != op.shape for op in stays
    ):
        return module
    computations = tuple(_with_narrow(module, c, narrow) for c in module.computations)
    # The header repeats the entry's shapes, which are others now.
    header = without(module.attributes, ("entry_computation_layout",))
    return replace(module, computations=computations, attributes=header)


def _narrowed(shape: Shape, narrow: ElementType) -> Shape:
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(_narrowed(s, narrow) for s in shape.elements))
    if not isinstance(shape, ArrayShape) or shape.element_type is not F32:
        return shape
    return ArrayShape(narrow, shape.dimensions, shape.layout, shape.dynamic)


def _with_narrow(module: Module, old: Computation, narrow: ElementType) -> Computation:
    draft = Draft(module, old)
    for op in old.instructions:
        operands = tuple([draft.place[i] for i in op.operands])
        shape = _narrowed(op.shape, narrow)
        if op.opcode in _AS_WRITTEN:
            operands = tuple(
                draft.add(op, "convert", old.instructions[was].shape, (now,))
                if draft.shape(now) != old.instructions[was].shape
                else now
                for was, now in zip(op.operands, operands, strict=True)
            )
            at = draft.append(with_operands(op, operands))
            if shape != op.shape:
                at = draft.add(op, "convert", shape, (at,))
        else:
            at = draft.append(with_operands(_constant(op, shape), operands)._replace(shape=shape))
        draft.place.append(at)
    return draft.finish()


def _constant(op: Instruction, shape: Shape) -> Instruction:
    """Return a constant with its values rounded; other instructions as they are."""
    if op.opcode != "constant" or shape == op.shape or not isinstance(shape, ArrayShape):
        return op
    value = constant_array(op)
    if value is None:
        return op
    rounded = np.asarray(to_storage(value, shape.element_type.name))
    rounded.flags.writeable = False
    return op._replace(literal=Literal(array=rounded))


@register
@dataclass(frozen=True, slots=True)
class NarrowFloats(Pass):
    """Makes every f32 a type of 16 bits, parameters and results included: an edit, tried out."""

    name: ClassVar[str] = "narrow-floats"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE, TRIP_COUNTS})
    to: str = "f16"
    """`f16` or `bf16`."""

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module in half precision; UsageError E1010 for another type."""
        if self.to not in _NARROW:
            raise UsageError(
                "E1010",
                f"floats cannot be narrowed to {self.to!r}",
                hint=f"to={' or to='.join(_NARROW)}",
            )
        return floats_narrowed(module, self.to), plan
