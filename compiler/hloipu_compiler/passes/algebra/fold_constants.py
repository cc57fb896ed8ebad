"""Constant folding, with the interpreter's kernels.

A value is known where it is a constant, an iota or an op of known values. Known values of few
elements are computed; a large one is known where all its elements are one scalar, and then only
that scalar is computed, and broadcast.
"""

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.algebra.expand_bitcasts import bitcasts_expanded
from hloipu_compiler.passes.framework.attribute_edits import carried
from hloipu_compiler.passes.framework.constant_values import constant_array
from hloipu_compiler.passes.framework.pass_base import (
    NO_BITCASTS,
    NO_DEAD_CODE,
    TRIP_COUNTS,
    Facts,
    Pass,
)
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, with_each, with_operands
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.computing import computing

if TYPE_CHECKING:
    from hloipu_compiler.interpret.planning.plan import Array
    from hloipu_compiler.interpret.planning.planner import Planner

MOST_ELEMENTS = 1024
_FREE_ELEMENTS = 64
"""Constants up to this size are always worth having; larger ones only from other constants."""
_GROWTH = 2
"""How many times the elements of the constants it comes from a larger constant may have."""

_SPREAD = frozenset("reshape transpose slice reverse copy dynamic-slice broadcast".split())
"""Ops whose result has no element that their first operand has not."""
_MOVES = _SPREAD | frozenset("dynamic-update-slice concatenate pad gather bitcast-convert".split())
_TREE = frozenset({"iota", "broadcast"})
"""Ops that are as good as constants: they are computed for their users, and stay themselves."""
FOLDABLE = (ELEMENTWISE - {"stochastic-convert"}) | _MOVES | {"reduce", "dot"}


@dataclass(slots=True)
class _KnownValue:
    """What is known of a value: all its elements, or the one that all of them are."""

    array: "Array | None"
    scalar: "Array | None"
    constant_elements: int
    """Elements of the constants that it comes from."""


class _Folding:
    """The known values of one computation, by new position."""

    def __init__(self, planner: "Planner", draft: Draft, most_elements: int) -> None:
        self.planner = planner
        self.draft = draft
        self.most_elements = most_elements
        self.known: dict[int, _KnownValue] = {}

    def note(self, at: int, op: Instruction) -> None:
        """Take in a constant that stands at a position."""
        if isinstance(op.shape, ArrayShape) and op.shape.element_count <= self.most_elements:
            array = constant_array(op)
            if array is not None:
                self.known[at] = _KnownValue(array, _single(array), array.size)

    def result(self, op: Instruction) -> _KnownValue | None:
        """Return the value of an instruction, or None where it is not known or not worth it."""
        shape = op.shape
        if not isinstance(shape, ArrayShape) or shape.dynamic is not None:
            return None
        operands = [self.known[i] for i in op.operands]
        elements = sum(k.constant_elements for k in operands)
        if op.opcode in _SPREAD and operands[0].scalar is not None and shape.element_count:
            return _KnownValue(self._full(operands[0].scalar, shape), operands[0].scalar, elements)
        scalars = [k.scalar for k in operands if k.scalar is not None]
        if op.opcode in ELEMENTWISE and len(scalars) == len(operands) and shape.element_count:
            scalar = self._computed(op, scalars, (), [() for _ in operands])
            if scalar is None:
                return None
            return _KnownValue(self._full(scalar, shape), scalar, elements)
        arrays = [k.array for k in operands if k.array is not None]
        if len(arrays) != len(operands) or shape.element_count > self.most_elements:
            return None
        value = self._computed(op, arrays, shape.dimensions, [a.shape for a in arrays])
        return None if value is None else _KnownValue(value, _single(value), elements)

    def _full(self, scalar: "Array", shape: ArrayShape) -> "Array | None":
        if shape.element_count > self.most_elements:
            return None
        return np.broadcast_to(scalar.reshape(()), shape.dimensions)

    def _computed(
        self,
        op: Instruction,
        values: "list[Array]",
        sizes: tuple[int, ...],
        operand_sizes: list[tuple[int, ...]],
    ) -> "Array | None":
        """Run the evaluator's lowering of one instruction on values of the sizes given."""
        from hloipu_compiler.interpret.planning.site import LOWERINGS, Site

        if op.attributes.called and not self._is_simple(op):
            return None
        shapes = []
        for at, dimensions in zip(op.operands, operand_sizes, strict=True):
            shape = self.draft.shape(at)
            if not isinstance(shape, ArrayShape) or shape.dynamic is not None:
                return None
            shapes.append(
                shape
                if shape.dimensions == dimensions
                else ArrayShape(shape.element_type, dimensions)
            )
        if isinstance(op.shape, ArrayShape) and op.shape.dimensions != sizes:
            op = op._replace(shape=ArrayShape(op.shape.element_type, sizes))
        planner = self.planner
        site = Site(
            planner.module, self.draft.old, op, tuple(shapes), planner.plan, planner.region,
            planner.region_at, planner.effects,
        )  # fmt: skip
        inputs = [v.reshape(s) for v, s in zip(values, operand_sizes, strict=True)]
        try:
            (value,) = LOWERINGS[op.opcode](site)(inputs)
        except UnsupportedError:
            return None
        value = np.ascontiguousarray(value).reshape(sizes)
        value.flags.writeable = False
        return value

    def _is_simple(self, op: Instruction) -> bool:
        """Whether what an op applies is straight-line code: a loop in it might never end."""
        return not any(
            y.attributes.called or y.opcode not in FOLDABLE | {"parameter", "constant"}
            for name in op.attributes.called
            for y in self.planner.module.computation[name].instructions
        )

    def replacement(self, op: Instruction, value: _KnownValue) -> Instruction | None:
        """Return the constant or broadcast that stands for a value; None to leave the op."""
        shape = op.shape
        if not isinstance(shape, ArrayShape):
            return None
        attributes = carried(op.attributes, {})
        if value.scalar is not None and shape.element_count > 1:
            scalar = np.array(value.scalar.reshape(()))
            scalar.flags.writeable = False
            at = self.draft.add(
                op, "constant", ArrayShape(shape.element_type), literal=Literal(array=scalar)
            )
            self.known[at] = _KnownValue(scalar, scalar, 1)
            return op._replace(
                opcode="broadcast", operands=(at,), backend_config="", start=-1, end=-1,
                attributes=carried(op.attributes, {"dimensions": ()}),
            )  # fmt: skip
        array = value.array
        most = max(_FREE_ELEMENTS, _GROWTH * value.constant_elements)
        if array is None or array.size > most:
            return None
        return op._replace(
            opcode="constant", operands=(), attributes=attributes, backend_config="",
            literal=Literal(array=array), start=-1, end=-1,
        )  # fmt: skip


def _single(array: "Array") -> "Array | None":
    """Return the element that all elements are, to the bit, as a scalar."""
    if array.size == 0:
        return None
    flat = array.reshape(-1)
    if flat.size > 1:
        if not flat.strides[0]:
            return flat[:1].reshape(())
        words = np.ascontiguousarray(flat).view(np.uint8).reshape(flat.size, flat.itemsize)
        if (words != words[0]).any():
            return None
    return flat[:1].reshape(())


def constants_folded(module: Module, most_elements: int = MOST_ELEMENTS) -> Module:
    """Return the module with ops on constants computed; the same one where there are none."""
    from hloipu_compiler.interpret.planning.planner import Planner
    from hloipu_compiler.interpret.planning.site import Effects

    module = bitcasts_expanded(module)
    planner = Planner(module, Effects())
    with computing():
        return with_each(module, lambda c: _folded(planner, c, most_elements))


def _folded(planner: "Planner", computation: Computation, most_elements: int) -> Computation:
    draft = Draft(planner.module, computation)
    folding = _Folding(planner, draft, most_elements)
    known, instructions, place = folding.known, draft.made, draft.place
    changed = False
    for op in computation.instructions:
        operands, opcode = op.operands, op.opcode
        if changed and operands:
            moved = tuple([place[i] for i in operands])
            if moved != operands:
                op, operands = with_operands(op, moved), moved
        if opcode == "constant":
            folding.note(len(instructions), op)
        elif (
            operands
            and operands[0] in known  # most ops read no constant
            and opcode in FOLDABLE
            and known.keys() >= set(operands)
        ):
            value = folding.result(op)
            if value is not None:
                folded = None if opcode in _TREE else folding.replacement(op, value)
                if folded is not None:
                    op, changed = folded, True
                known[len(instructions)] = value
        elif opcode == "iota":
            value = folding.result(op) if not operands else None
            if value is not None:
                value.constant_elements = 0
                known[len(instructions)] = value
        place.append(len(instructions))
        instructions.append(op)
    return draft.finish() if changed else computation


@register
@dataclass(frozen=True, slots=True)
class FoldConstants(Pass):
    """Computes ops on constants that have few elements, or one scalar in all elements."""

    name: ClassVar[str] = "fold-constants"
    establishes: ClassVar[Facts] = frozenset({NO_BITCASTS})
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE, TRIP_COUNTS})

    max_elements: int = MOST_ELEMENTS

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with constants folded."""
        return constants_folded(module, self.max_elements), plan
