"""Gradients summed over devices once a batch, not in each micro-batch.

Devices of a mesh's data axes have partial sums of a gradient, which a collective adds up. That sum
is linear, and so is what micro-batches do to gradients: each device adds up its own partial sums,
and the update begins with one collective of the totals. What stands between the collective and
the end of the gradient goes to the update as well, if it is linear with factors that do not vary.

An all-reduce costs no memory there: partial sums are as large as sums. A reduce-scatter's operand
is as many times its result as devices meet, and its accumulator is whole then, as it is in
PyTorch's FSDP with `no_sync` and in replicas without a sharded optimizer.

Totals are of the type in which the gradient was added up, and rounded as micro-batches add: in
half precision each device rounds its own partial sums, K times for K micro-batches.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, leaves_of
from hloipu_compiler.partition.training.step_phases import (
    BACKWARD,
    FREE,
    UPDATE,
    Gradient,
    Phases,
)
from hloipu_compiler.passes.framework.device_sums import (
    DeviceSum,
    Sums,
    device_sum,
    elements_of,
    meeting_of,
    moved_operand,
    with_type,
)
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import with_operands
from hloipu_runtime.element_types import ElementType

_FIRST_VARIES = frozenset({"divide", "dynamic-slice"})
"""Opcodes that are linear in their first operand where the others do not vary."""


def with_late_sums(
    module: Module, phases: Phases, *, scatters: bool = True
) -> tuple[Module, Phases]:
    """Return a flat step whose update adds gradients up over devices, and its phases.

    The same ones where no gradient is a sum over devices that only the update reads. `scatters`:
    reduce-scatters as well as all-reduces.
    """
    opcodes = ("all-reduce", "reduce-scatter") if scatters else ("all-reduce",)
    if not any(x.opcode in opcodes for x in module.entry.instructions):
        return module, phases
    return _Rewriting(module, phases, opcodes).rewritten()


class _Rewriting:
    """The new entry in the making."""

    def __init__(self, module: Module, phases: Phases, opcodes: tuple[str, ...]) -> None:
        self.module, self.phases, self.opcodes = module, phases, opcodes
        self.entry = module.entry
        self.sums = Sums(module)
        self.names = Names(x.name for x in self.entry.instructions)
        self.made: list[Instruction] = []
        self.phase: list[str] = []
        self.place: dict[int, int] = {}
        self.source: dict[int, int] = {}
        """Position of a gradient that was a sum -> new position of what is added up before."""

    def rewritten(self) -> tuple[Module, Phases]:
        found = {g.position: s for g in self.phases.gradients if (s := self._sum(g.position))}
        if not found:
            return self.module, self.phases
        at_meeting: dict[int, list[int]] = {}
        for gradient, each in found.items():
            at_meeting.setdefault(each.meeting, []).append(gradient)
        late = {i: each for each in found.values() for i in each.ops}
        for position, x in enumerate(self.entry.instructions):
            if position in at_meeting:
                self._meeting(position, {g: found[g] for g in at_meeting[position]})
            elif position not in self.place:
                self._op(position, x, late.get(position))
        gradients: dict[int, tuple[int, ...]] = {}
        for g in self.phases.gradients:
            at = self.source.get(g.position, self.place[g.position])
            gradients[at] = tuple(dict.fromkeys((*gradients.get(at, ()), *g.parameters)))
        root = self.place[self.entry.root]
        entry = replace(self.entry, instructions=tuple(self.made), root=root)
        kept = (entry if c.name == entry.name else c for c in self.module.computations)
        added = tuple(self.sums.reducers.values())
        module = replace(
            self.module,
            computations=(*added, *kept),
            entry_position=self.module.entry_position + len(added),
        )
        each = tuple(Gradient(at, weights) for at, weights in gradients.items())
        return module, replace(self.phases, phase=tuple(self.phase), gradients=each)

    def _sum(self, position: int) -> DeviceSum | None:
        """Return the sum over devices that a gradient is made of, if it may wait."""
        entry, phase = self.entry, self.phases.phase
        if not isinstance(entry.instructions[position].shape, ArrayShape):
            return None
        each = device_sum(entry, position, self.opcodes, self._followed, self.sums.adds_up)
        if each is None or phase[each.source] != BACKWARD or phase[each.meeting] != BACKWARD:
            return None
        if any(phase[user] != UPDATE for user in entry.users[position]):
            return None
        for user, i in pairwise(each.ops):
            if entry.users[i] != (user,) or phase[i] != BACKWARD or i == entry.root:
                return None
        readers = [entry.instructions[i] for i in entry.users[each.meeting]]
        own = [r for r in readers if r.attributes.integer("index") == each.element]
        is_array = each.meeting in each.ops
        return each if (is_array or len(own) == 1) and self._may_be_widened(each) else None

    def _may_be_widened(self, each: DeviceSum) -> bool:
        """Whether what is before a conversion to a wider type can be in that type as well."""
        ops = [self.entry.instructions[i].opcode for i in each.ops]
        last = max((n for n, opcode in enumerate(ops) if opcode == "convert"), default=len(ops))
        return not {"multiply", "divide", "dynamic-slice"}.intersection(ops[last:])

    def _followed(self, x: Instruction) -> int | None:
        """Return the operand in which an op is linear, all others being the same for each batch."""
        moved = moved_operand(x, self.entry)
        if moved is not None:
            return moved
        rest = [i for i in x.operands if self.phases.phase[i] != FREE]
        if len(rest) != 1:
            return None
        is_first = x.opcode in _FIRST_VARIES and x.operands[0] == rest[0]
        return rest[0] if is_first or x.opcode == "multiply" else None

    # --- one op -----------------------------------------------------------------------------------

    def _op(self, position: int, x: Instruction, late: DeviceSum | None) -> None:
        moved = with_operands(x, tuple(self.place[i] for i in x.operands))
        phase = self.phases.phase[position]
        if late is not None:
            if x.opcode == "convert":  # to the type in which the sum is by now
                self.place[position] = moved.operands[0]
                return
            phase = UPDATE
            moved = moved._replace(shape=with_type(x.shape, late.element_type))
        self.place[position] = self._append(moved, phase)

    def _append(self, x: Instruction, phase: str) -> int:
        self.made.append(x)
        self.phase.append(phase)
        return len(self.made) - 1

    def _meeting(self, position: int, late: Mapping[int, DeviceSum]) -> None:
        """Write a collective without what may wait, and that in one of its own for each type."""
        x = self.entry.instructions[position]
        waiting = {each.element for each in late.values()}
        rest = [n for n in range(len(x.operands)) if n not in waiting]
        if rest:
            self._written(x, position, rest, BACKWARD, None)
        kinds = dict.fromkeys(each.element_type for each in late.values())
        for kind in kinds:
            own = {g: each for g, each in late.items() if each.element_type is kind}
            self._written(x, position, [e.element for e in own.values()], UPDATE, own)

    def _written(
        self, x: Instruction, position: int, elements: list[int], phase: str,
        late: Mapping[int, DeviceSum] | None,
    ) -> None:  # fmt: skip
        shapes = leaves_of(x.shape)
        operands = [self.place[x.operands[n]] for n in elements]
        kept = [shapes[n] for n in elements]
        attributes = x.attributes
        if late:
            kind = next(iter(late.values())).element_type
            attributes = self.sums.attributes(x, kind)
            operands = [self._widened(i, kind) for i in operands]
            kept = [with_type(shape, kind) for shape in kept]
            self.source.update(zip(late, operands, strict=True))
        name = x.name if not late else self.names.fresh(f"{x.name}.late")
        at = self._append(meeting_of(x, name, operands, kept, attributes), phase)
        if self.entry.users[position] and not isinstance(x.shape, ArrayShape):
            arrays = [self._append(e, phase) for e in elements_of(self.made[at], at, self.names)]
            arrays = arrays or [at]
            for user in self.entry.users[position]:
                element = self.entry.instructions[user].attributes.integer("index")
                if element in elements:
                    self.place[user] = arrays[elements.index(element)]
        self.place.setdefault(position, at)

    def _widened(self, at: int, kind: ElementType) -> int:
        x = self.made[at]
        shape = with_type(x.shape, kind)
        if shape is x.shape:
            return at
        convert = Instruction(self.names.fresh(x.name), "convert", shape, (at,), metadata=x.metadata)
        return self._append(convert, BACKWARD)
