"""Copies a call's IPU to the ops that it runs, so that it survives inlining.

A call, fusion, loop or branch that states an IPU states it for all that it runs and that says
nothing itself; what is run on several IPUs is copied for each. A tuple of shardings goes to what
takes the elements out.
"""

from dataclasses import replace

from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.partition.placement.statements import (
    Ipu,
    leaf_count,
    said,
    said_by_all,
    saying,
)
from hloipu_compiler.passes.framework.attribute_edits import renamed
from hloipu_compiler.passes.framework.call_forms import INLINED, RUN_BY_OPERANDS
from hloipu_compiler.passes.framework.names import Variants

_RUNNING = INLINED | RUN_BY_OPERANDS
_Variant = tuple[str, Ipu, tuple[Ipu, ...]]
"""A computation, what its ops say unless they say more, and what its parameter's leaves do."""


def says_anything(module: Module, partitions: int = 1) -> bool:
    """Whether an op that is reached states an IPU other than the first."""
    return any(
        ipu for c in module.computations for op in c.instructions for ipu in said(op, partitions)
    )


def handed_down(module: Module, partitions: int = 1) -> Module:
    """Return the module with statements of calls on what they run."""
    return _Handing(module, partitions).from_entry((module.entry.name, None, ()))


class _Handing(Variants[_Variant]):
    """Computations as they are needed, each once for each IPU that it is run on."""

    def __init__(self, module: Module, partitions: int) -> None:
        super().__init__(module)
        self.partitions = partitions

    def written(self, variant: _Variant) -> Computation:
        """Return a computation with what its caller states."""
        old, ipu, of_parameter = variant
        computation = self.module.computation[old]
        statements: list[tuple[Ipu, ...]] = []
        instructions: list[Instruction] = []
        for op in computation.instructions:
            stated = said(op, self.partitions)
            if not stated and op.parameter_number == 0 and len(of_parameter) == leaf_count(op):
                stated = of_parameter
            elif not stated and op.opcode == "get-tuple-element":
                stated = self._taken(computation, op, statements)
            if not stated and ipu is not None and op.parameter_number < 0:
                stated = (ipu,) * leaf_count(op)
            statements.append(stated)
            one = set(stated)
            only = one.pop() if len(one) == 1 else None
            if only is not None and op.opcode != "tuple":
                op = saying(op, only)
            if op.opcode in _RUNNING and op.attributes.called:
                op = self._calling(op, stated)
            instructions.append(op)
        return replace(computation, instructions=tuple(instructions))

    def _taken(
        self, computation: Computation, op: Instruction, statements: list[tuple[Ipu, ...]]
    ) -> tuple[Ipu, ...]:
        source = computation.instructions[op.operands[0]]
        stated = statements[op.operands[0]]
        if not stated or not isinstance(source.shape, TupleShape) or len(set(stated)) == 1:
            return ()
        index = op.attributes.integer("index")
        before = sum(leaf_count(source._replace(shape=s)) for s in source.shape.elements[:index])
        part = stated[before : before + leaf_count(op)]
        return () if set(part) == {None} else part

    def _calling(self, op: Instruction, stated: tuple[Ipu, ...]) -> Instruction:
        only = said_by_all(op, self.partitions)
        of_parameter = stated if op.opcode == "while" and only is None else ()
        names = {name: self.named((name, only, of_parameter)) for name in op.attributes.called}
        return op._replace(attributes=renamed(op.attributes, names))
