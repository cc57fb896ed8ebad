"""Writes all-reduces that average gradients over replicas into a placed module.

One all-reduce for all gradients of an element type on an IPU, as where steps are cut
(`lowering/pipelines/gradient_sums.py`); what the update reads are the means. For that the update's
ops, on which no other op depends, go behind all others.
"""

from collections.abc import Mapping
from dataclasses import replace

from hloipu_compiler.ir.attributes import Attributes, ReplicaGroups
from hloipu_compiler.ir.graph import Computation, Instruction, Module, combiner
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape, array_shape
from hloipu_compiler.partition.placement.cells import OpKey
from hloipu_compiler.partition.placement.handing_down import saying
from hloipu_compiler.partition.training.step_phases import UPDATE, Phases
from hloipu_compiler.passes.algebra.expand_bitcasts import plain
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import with_operands
from hloipu_runtime.element_types import ELEMENT_TYPES


def with_gradient_means(
    module: Module, phases: Phases, ipus: Mapping[OpKey, int], replicas: int
) -> Module:
    """Return a flat module whose update reads means of its gradients over replicas."""
    return _Writing(module, phases, ipus, replicas).written()


class _Writing:
    def __init__(
        self, module: Module, phases: Phases, ipus: Mapping[OpKey, int], replicas: int
    ) -> None:
        self.module = module
        self.entry = module.entry
        self.phases = phases
        self.ipus = ipus
        self.replicas = replicas
        self.names = Names(op.name for op in self.entry.instructions)
        self.computation_names = Names(c.name for c in module.computations)
        self.instructions: list[Instruction] = []
        self.place: dict[int, int] = {}
        self.reducers: list[Computation] = []

    def written(self) -> Module:
        phase = self.phases.phase
        every = range(len(self.entry.instructions))
        instructions = self.entry.instructions
        early = [n for n in every if (phase[n] and phase[n] != UPDATE) or self._is_given(n)]
        update = [n for n in every if phase[n] == UPDATE]
        known = {*early, *update}
        for position in early:
            self._copy(instructions[position], position, self.place)
        means = self._means()
        for position in update:
            self._copy(instructions[position], position, self.place | means)
        for position in every:
            if position not in known:
                self._copy(instructions[position], position, self.place)
        entry = replace(
            self.entry, instructions=tuple(self.instructions), root=self.place[self.entry.root]
        )
        others = [c for c in self.module.computations if c.name != entry.name]
        computations = (*self.reducers, *others, entry)
        return replace(self.module, computations=computations, entry_position=len(computations) - 1)

    def _is_given(self, position: int) -> bool:
        op = self.entry.instructions[position]
        taken = op.opcode == "get-tuple-element" and op.operands[0] in self.entry.parameters
        return op.parameter_number >= 0 or taken

    def _copy(self, op: Instruction, position: int, place: Mapping[int, int]) -> None:
        self.place[position] = len(self.instructions)
        self.instructions.append(with_operands(op, tuple(place[i] for i in op.operands)))

    def _means(self) -> dict[int, int]:
        """Write the means; return their positions by those of the gradients."""
        groups: dict[tuple[str, int], list[int]] = {}
        for gradient in self.phases.gradients:
            op = self.entry.instructions[gradient.position]
            if isinstance(op.shape, ArrayShape):
                key = op.shape.element_type.name, self.ipus.get((self.entry.name, op.name), 0)
                groups.setdefault(key, []).append(gradient.position)
        mean_by_gradient: dict[int, int] = {}
        for (kind, ipu), positions in groups.items():
            totals = self._totals(kind, ipu, positions)
            for position, total in zip(positions, totals, strict=True):
                mean_by_gradient[position] = self._share(kind, ipu, total)
        return mean_by_gradient

    def _add(
        self,
        ipu: int,
        opcode: str,
        shape: ArrayShape | TupleShape,
        operands: tuple[int, ...],
        attributes: Attributes,
    ) -> int:
        name = self.names.fresh(f"gradients.{opcode}")
        self.instructions.append(
            saying(Instruction(name, opcode, shape, operands, attributes), ipu)
        )
        return len(self.instructions) - 1

    def _totals(self, kind: str, ipu: int, positions: list[int]) -> list[int]:
        groups = ReplicaGroups((tuple(range(self.replicas)),))
        reducer = self._reducer(kind)
        attributes = Attributes({"replica_groups": groups, "to_apply": reducer}, (reducer,))
        operands = tuple(self.place[i] for i in positions)
        shapes = tuple(self.instructions[i].shape for i in operands)
        whole = shapes[0] if len(shapes) == 1 else TupleShape(shapes)
        if not isinstance(whole, ArrayShape | TupleShape):
            raise TypeError(f"{kind} gradients are not arrays")
        at = self._add(ipu, "all-reduce", whole, operands, attributes)
        if len(shapes) == 1:
            return [at]
        return [
            self._add(ipu, "get-tuple-element", shape, (at,), Attributes({"index": number}))
            for number, shape in enumerate(shapes)
            if isinstance(shape, ArrayShape)
        ]

    def _share(self, kind: str, ipu: int, total: int) -> int:
        shape = array_shape(self.instructions[total].shape)
        name = self.names.fresh("gradients.share")
        number = plain(ELEMENT_TYPES[kind], ())
        literal = Literal(repr(1 / self.replicas))
        self.instructions.append(Instruction(name, "constant", number, literal=literal))
        nowhere = Attributes({"dimensions": ()})
        share = self._add(ipu, "broadcast", shape, (len(self.instructions) - 1,), nowhere)
        return self._add(ipu, "multiply", shape, (total, share), Attributes({}))

    def _reducer(self, kind: str) -> str:
        name = self.computation_names.fresh("total_over_replicas")
        self.reducers.append(combiner(name, "add", plain(ELEMENT_TYPES[kind], ())))
        return name
