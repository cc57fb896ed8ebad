"""Backward pass of layout: propagates each user's demand to its operands."""

from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from math import prod

from hloipu_compiler.ir.dimension_rules import rule_in
from hloipu_compiler.ir.factors import FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape, leaf_range, leaves_of
from hloipu_compiler.layout.demands import (
    all_but,
    demands_of_dot,
    placed_dot,
    region_demands,
    row_demand,
    tensor_of,
)
from hloipu_compiler.layout.layout import InitialLayout, LeafKey, heaviest
from hloipu_compiler.planners.layout_propagation import (
    made_whole,
    reshaped,
    spans_whole,
    untransposed,
)
from hloipu_compiler.planners.op_grids import Demand
from hloipu_compiler.planners.placing import mapping_of
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping

ELEMENTWISE = frozenset(name for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits) | {
    "fusion"
}
RESHAPES = frozenset("reshape bitcast dynamic-reshape".split())
CALLERS = frozenset("while conditional call".split())

Mappings = tuple[Mapping | None, ...]
"""Where the arrays of a result come to lie, as far as that is known."""


class Backwards:
    """What is known of all computations, and the walk back through one of them."""

    def __init__(self, module: Module, machine: Machine, tuning: Tuning) -> None:
        self.module = module
        self.machine = machine
        self.tuning = tuning
        self.tunings: MappingType[str, Tuning] = {}
        """Of instructions of the entry, where less memory is left."""
        self.initial_layouts: dict[LeafKey, InitialLayout] = {}
        self.demands: dict[str, dict[tuple[str, int], list[Demand]]] = {}
        """By computation, then by instruction and number of the array."""
        self.first_tiles: dict[LeafKey, int] = {}
        self.mappings: dict[str, list[Mappings]] = {}

    def backwards(self, computation: Computation, ends: MappingType[int, Mapping]) -> None:
        """Walk back through a computation, some of whose results are to end where they are kept."""
        self.demands[computation.name] = {}
        for leaf, mapping in ends.items():
            self._prefer(computation, computation.root, Demand(mapping, mapping, 1, ""), leaf)
        mappings = self.mappings[computation.name]
        for position in reversed(range(len(computation.instructions))):
            self._back(computation, position, mappings)

    def tuning_of(self, computation: Computation, instruction: Instruction) -> Tuning:
        """Return the tuning with which a product will be planned, as far as that is known."""
        is_entry = computation is self.module.entry
        return self.tunings.get(instruction.name, self.tuning) if is_entry else self.tuning

    def known(self, computation: str, name: str, leaf: int = 0) -> Sequence[Demand]:
        """Return the demands for an array of an instruction's result."""
        return self.demands.get(computation, {}).get((name, leaf), ())

    def _prefer(
        self, computation: Computation, position: int, demand: Demand, leaf: int = 0
    ) -> None:
        key = computation.instructions[position].name, leaf
        self.demands[computation.name].setdefault(key, []).append(demand)

    def _back(self, computation: Computation, position: int, mappings: Sequence[Mappings]) -> None:
        """Hand the demands for a result on to what it is made of."""
        instruction = computation.instructions[position]
        opcode = instruction.opcode
        if not instruction.operands:
            return
        if opcode == "dot":
            placed = placed_dot(
                self.machine, self.tuning_of(computation, instruction), computation, instruction
            )
            first = self.first_tiles.get((computation.name, instruction.name, 0), 0)
            preferences = demands_of_dot(
                self.machine, computation, instruction, placed, first, self.tuning.code_price
            )
            for i, preference in zip(instruction.operands, preferences, strict=False):
                self._prefer(computation, i, preference)
        elif opcode in ("tuple", "get-tuple-element"):
            self._back_through_tuple(computation, instruction)
        elif opcode in CALLERS:
            self._back_into_callees(computation, instruction)
        elif isinstance(instruction.shape, ArrayShape):
            demands = heaviest(self.known(computation.name, instruction.name))
            self._back_through_array(computation, instruction, demands, mappings)
        elif opcode == "fusion":
            for number, leaf in enumerate(leaves_of(instruction.shape)):
                demands = heaviest(self.known(computation.name, instruction.name, number))
                each = instruction._replace(shape=leaf)
                self._back_through_elementwise(computation, each, demands, mappings)
        if opcode == "fusion":
            for at, preference in region_demands(
                self.machine, self.module, computation, instruction, self.tuning.code_price
            ):
                self._prefer(computation, at, preference)

    def _back_through_tuple(self, computation: Computation, instruction: Instruction) -> None:
        name = computation.name
        if instruction.opcode == "get-tuple-element":
            shape = computation.instructions[instruction.operands[0]].shape
            if isinstance(shape, TupleShape):
                places = leaf_range(shape, instruction.attributes.integer("index"))
                for leaf, place in enumerate(range(places.start, places.stop)):
                    for preference in heaviest(self.known(name, instruction.name, leaf)):
                        self._prefer(computation, instruction.operands[0], preference, place)
            return
        leaf = 0
        for i in instruction.operands:
            for own in range(len(leaves_of(computation.instructions[i].shape))):
                for preference in heaviest(self.known(name, instruction.name, leaf)):
                    self._prefer(computation, i, preference, own)
                leaf += 1

    def _back_into_callees(self, computation: Computation, instruction: Instruction) -> None:
        """Hand on the demands of called computations on their parameters."""
        if instruction.opcode == "while":
            for leaf in range(len(leaves_of(instruction.shape))):
                initial_layout = self.initial_layouts.get(
                    (computation.name, instruction.name, leaf)
                )
                if initial_layout is not None:
                    preference = Demand(
                        initial_layout.mapping,
                        initial_layout.mapping,
                        1,
                        initial_layout.user or instruction.name,
                    )
                    self._prefer(computation, instruction.operands[0], preference, leaf)
            return
        first = 1 if instruction.opcode == "conditional" else 0
        for number, name in enumerate(instruction.attributes.called):
            callee = self.module.computation[name]
            given = (
                instruction.operands[first + number : first + number + 1]
                if first
                else instruction.operands
            )
            for i, parameter in zip(given, callee.parameters, strict=False):
                shape = callee.instructions[parameter].shape
                for leaf in range(len(leaves_of(shape))):
                    own = callee.instructions[parameter].name
                    for preference in heaviest(self.known(name, own, leaf)):
                        self._prefer(computation, i, preference, leaf)

    def _back_through_array(
        self,
        computation: Computation,
        instruction: Instruction,
        demands: Sequence[Demand],
        mappings: Sequence[Mappings],
    ) -> None:
        opcode = instruction.opcode
        if opcode in ELEMENTWISE:
            self._back_through_elementwise(computation, instruction, demands, mappings)
            return
        source = computation.instructions[instruction.operands[0]]
        if not isinstance(source.shape, ArrayShape):
            return
        if opcode in ("dynamic-slice", "dynamic-update-slice"):
            self._back_through_indexing(computation, instruction, demands)
            return
        own = row_demand(self.machine, computation, instruction, self.tuning.code_price)
        if own is not None:
            self._prefer(computation, instruction.operands[0], own)
        for demand in demands:
            preference = _seen_before(computation, instruction, demand)
            if preference is not None:
                self._prefer(computation, instruction.operands[0], preference)

    def _back_through_elementwise(
        self,
        computation: Computation,
        instruction: Instruction,
        demands: Sequence[Demand],
        mappings: Sequence[Mappings],
    ) -> None:
        """Operands of the result's sizes are wished where it is, or where another one is made.

        Where nothing says so, all are wished where the narrowest of them lies by default, whose
        words hold most elements: blocks of wider ones may not be whole words of it.
        """
        shape = instruction.shape.dimensions  # type: ignore[union-attr]
        if not shape:
            return
        alike = [
            i
            for i in dict.fromkeys(instruction.operands)
            if isinstance(other := computation.instructions[i].shape, ArrayShape)
            and other.dimensions == shape
        ]
        for i in alike:
            for d in demands:
                self._prefer(computation, i, d._replace(need=d.born))
            beside = [mappings[j][0] for j in alike if j != i and mappings[j][0] is not None]
            if mappings[i][0] is None and beside and beside[0] is not None:
                self._prefer(computation, i, Demand(beside[0], beside[0], 1, instruction.name))
        if demands or any(mappings[i][0] is not None for i in alike):
            return
        bits = [_bits(computation.instructions[i]) for i in alike]
        if len({*bits}) > 1:
            usual = mapping_of(shape, min(bits), self.machine.chip.tiles_per_ipu)
            for i, each in zip(alike, bits, strict=True):
                if each > min(bits):
                    self._prefer(computation, i, Demand(usual, usual, 1, instruction.name))

    def _back_through_indexing(
        self, computation: Computation, instruction: Instruction, demands: Sequence[Demand]
    ) -> None:
        """Demand what data decides whole on each tile, the rest as users prefer, or in blocks.

        Parts at places that participants know are no matter of data.
        """
        if self._is_own_part(computation, instruction):
            return
        data = tensor_of(computation.instructions[instruction.operands[0]])
        moving = rule_in(computation, instruction).dimensions(0, FactorKind.INDEXED)
        preferences = [
            Demand(mapping, mapping, d.times, d.user)
            for d in demands
            if (mapping := self._indexed(instruction, d.born, data, moving)) is not None
        ]
        if not preferences:
            mapping = all_but(data, moving, self.machine.chip.tiles_per_ipu)
            if mapping is None:
                return
            preferences = [Demand(mapping, mapping, 1, instruction.name)]
        for preference in preferences:
            self._prefer(computation, instruction.operands[0], preference)
        if instruction.opcode == "dynamic-update-slice":
            preference = preferences[0]
            part = tensor_of(computation.instructions[instruction.operands[1]]).shape
            born = made_whole(preference.born, part, moving)
            need = Mapping(preference.born.tiles, spans_whole(preference.born, part, moving))
            self._prefer(computation, instruction.operands[1], preference.seen(born, need))

    def _is_own_part(self, computation: Computation, instruction: Instruction) -> bool:
        partitions, replicas = (
            self.module.attributes.integer(key, 1) for key in ("num_partitions", "replica_count")
        )
        if partitions * replicas == 1 or instruction.opcode != "dynamic-slice":
            return False
        from hloipu_compiler.plan.own_numbers import own_numbers

        parts = own_numbers(computation, replicas, partitions).parts
        return computation.position[instruction.name] in parts

    def _indexed(
        self, instruction: Instruction, born: Mapping, data: Tensor, moving: Sequence[int]
    ) -> Mapping | None:
        """Return where indexed data lies for a user; None where too few tiles would be left.

        An update is written wherever data lies: every tile looks whether it has the place.
        """
        if instruction.opcode == "dynamic-update-slice" and not born.replicated_axes:
            return born
        return _fitting(born, data.shape, moving)


def _bits(instruction: Instruction) -> int:
    return ELEMENT_TYPES[tensor_of(instruction).element_type].bits


def _fitting(born: Mapping, shape: tuple[int, ...], moving: Sequence[int]) -> Mapping | None:
    """Return a mapping with indexed dimensions whole; None where too few tiles would be left."""
    if not moving:
        return born
    partly_whole = made_whole(born, shape, moving)
    return partly_whole if 2 * partly_whole.tiles.count >= born.tiles.count else None


def dimension_order(computation: Computation, instruction: Instruction) -> tuple[int, ...] | None:
    """Return the operand's dimensions in the result's order, if an op only hands elements on."""
    if Trait.DATA_MOVEMENT not in OPS[instruction.opcode].traits:
        return None
    return rule_in(computation, instruction).order()


def _seen_before(
    computation: Computation, instruction: Instruction, demand: Demand
) -> Demand | None:
    """Return the demand for the operand of an op that only sees it differently, or takes a part."""
    source = tensor_of(computation.instructions[instruction.operands[0]]).shape
    shape = tensor_of(instruction).shape
    if instruction.opcode in RESHAPES:
        born = reshaped(demand.born, shape, source)
        if born is None:
            return None
        need = reshaped(demand.need, shape, source)
        return demand.seen(born, need or born)
    if (order := dimension_order(computation, instruction)) is not None:
        return demand.seen(untransposed(demand.born, order), untransposed(demand.need, order))
    if instruction.opcode == "slice" and prod(source) < 4 * prod(shape):
        cut = rule_in(computation, instruction).dimensions(0, FactorKind.PERMUTATION)
        fitting = _fitting(demand.born, source, cut)
        return None if fitting is None else demand.seen(fitting, fitting)
    return None
