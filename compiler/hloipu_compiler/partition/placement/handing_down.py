"""Copies a call's IPU to the ops that it runs, so that it survives inlining.

A call, fusion, loop or branch that states an IPU states it for all that it runs and that says
nothing itself; what is run on several IPUs is copied for each. A tuple of shardings goes to what
takes the elements out.
"""

from dataclasses import replace

from hloipu_compiler.analysis.call_graph import callees_first
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
from hloipu_compiler.passes.framework.names import Names

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
    handing = _Handing(module, partitions)
    entry = handing.named((module.entry.name, None, ()))
    while handing.waiting:
        handing.write(handing.waiting.pop())
    computation_by_name = {c.name: c for c in module.computations} | handing.computations
    computations = tuple(computation_by_name.values())
    position = next(n for n, c in enumerate(computations) if c.name == entry)
    whole = replace(module, computations=computations, entry_position=position)
    ordered = callees_first(whole, only_reachable=True)
    return replace(whole, computations=ordered, entry_position=len(ordered) - 1)


class _Handing:
    """Computations as they are needed, each once for each IPU that it is run on."""

    def __init__(self, module: Module, partitions: int) -> None:
        self.module = module
        self.partitions = partitions
        self.names = Names(c.name for c in module.computations)
        self.known: dict[_Variant, str] = {}
        self.taken: set[str] = set()
        self.waiting: list[_Variant] = []
        self.computations: dict[str, Computation] = {}

    def named(self, variant: _Variant) -> str:
        """Return the name of a computation that says so; the first takes the old name."""
        if variant not in self.known:
            name = variant[0]
            self.known[variant] = name if name not in self.taken else self.names.fresh(name)
            self.taken.add(name)
            self.waiting.append(variant)
        return self.known[variant]

    def write(self, variant: _Variant) -> None:
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
        new = replace(computation, name=self.known[variant], instructions=tuple(instructions))
        self.computations[new.name] = new

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
