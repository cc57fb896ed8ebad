"""Reads an op's IPU from its annotations, and copies a call's IPU to the ops that it runs.

`sharding={maximal device=N}`, a tuple of these for each leaf, or
`frontend_attributes={ipu_shard="N"}`, which wins. Where a module is partitioned, maximal shardings
mean partitions and are left alone.

A call, fusion, loop or branch that states an IPU states it for all that it runs and that says
nothing itself, so that it survives inlining; what is run on several IPUs is copied for each. A
tuple of shardings goes to what takes the elements out.
"""

from dataclasses import replace

from hloipu_compiler.hlo.attributes.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.hlo.attributes.sharding import ShardingKind, read_sharding
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import TupleShape, leaves
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.marks import stated_number
from hloipu_compiler.passes.framework.attribute_edits import renamed
from hloipu_compiler.passes.framework.call_forms import INLINED, RUN_BY_OPERANDS
from hloipu_compiler.passes.framework.names import Variants

KEY = "ipu_shard"
_CARRIER = "frontend_attributes"
_MOST_IPUS = 65_536

Ipu = int | None
"""None: not known."""


def said(op: Instruction, partitions: int = 1) -> tuple[Ipu, ...]:
    """Return the IPU that an op states of each leaf of its result; empty where it states none.

    Raises StagingError E0519 for what is no number of an IPU.
    """
    number = stated_number(op, KEY)
    if number is not None:
        return (number,) * leaf_count(op)
    text = op.attributes.text("sharding")
    if partitions > 1 or "maximal" not in text:
        return ()
    sharding = read_sharding(text)
    parts = sharding.elements or (sharding,)
    _check_devices(op, max((part.device or 0 for part in parts), default=0))
    devices = tuple(
        part.device if part.kind is ShardingKind.MAXIMAL and _is_one(part.device) else None
        for part in parts
    )
    if len(devices) == 1:
        devices *= leaf_count(op)
    return devices if len(devices) == leaf_count(op) and set(devices) != {None} else ()


def said_by_all(op: Instruction, partitions: int = 1) -> Ipu:
    """Return the IPU that an op states of all that it makes."""
    ipus = set(said(op, partitions))
    return ipus.pop() if len(ipus) == 1 else None


def saying(op: Instruction, ipu: int) -> Instruction:
    """Return an op that states its IPU."""
    words = {**read_frontend_attributes(op.attributes.text(_CARRIER)), KEY: str(ipu)}
    values = {**op.attributes, _CARRIER: frontend_attributes_text(words)}
    return op._replace(attributes=Attributes(values, op.attributes.called))


def leaf_count(op: Instruction) -> int:
    """Return how many arrays and tokens an op makes."""
    if not isinstance(op.shape, TupleShape):
        return 1
    return sum(1 for _ in leaves(op.shape))


def _check_devices(op: Instruction, highest: int) -> None:
    """Refuse numbers that no IPU has, before as many IPUs are made room for."""
    if highest >= _MOST_IPUS:
        raise StagingError(
            "E0519",
            f"{op.name!r} is put on device {highest} by its sharding, but no IPU has such a number",
            hint="number IPUs from 0: sharding={maximal device=0}",
        )


def _is_one(device: int | None) -> bool:
    return device is not None and 0 <= device < _MOST_IPUS


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
                stated = self._statement_of_element(computation, op, statements)
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

    def _statement_of_element(
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
