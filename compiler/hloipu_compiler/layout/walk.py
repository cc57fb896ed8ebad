"""Forward and backward pass of layout through each computation.

The walk forth tells where products come to lie and what follows them; the walk back hands each
user's demand on to what it reads. Called computations come before their callers, so that a loop's
demands for its state are known where the loop stands.
"""

from collections.abc import Mapping as MappingType
from collections.abc import Sequence

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.ir.dimension_rules import rule_in
from hloipu_compiler.ir.factors import FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape, leaf_range, leaves_of
from hloipu_compiler.layout.backward import (
    CALLERS,
    ELEMENTWISE,
    RESHAPES,
    Backwards,
    Mappings,
    dimension_order,
)
from hloipu_compiler.layout.demands import all_but, made_by_dot, placed_dot, tensor_of
from hloipu_compiler.layout.layout import (
    InitialLayout,
    Layout,
    LeafKey,
    chosen_initial_layout,
    heaviest,
)
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.planners.layout_propagation import reshaped, transposed
from hloipu_compiler.planners.op_grids import Demand
from hloipu_compiler.planners.placing import Placement
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping
from hloipu_runtime.program.steps import UNKNOWN_ITERATIONS
from hloipu_runtime.watching import each


def layout_of(
    module: Module,
    plan: Plan,
    machine: Machine,
    tuning: Tuning,
    kept: MappingType[int, int] | None = None,
    tunings: MappingType[str, Tuning] | None = None,
) -> Layout:
    """Decide where the values of a module are to lie.

    `kept`: for arrays of the entry's parameters that stay on the device, the result that each is
    next; both counted as in flattened tuples. `tunings`: of instructions of the entry for which
    less memory is left.
    """
    walk = _Walk(module, plan, machine, tuning)
    walk.tunings = tunings or {}
    for computation in _lowered(module):
        walk.computation(computation)
    walk.entry(kept or {})
    demands = {
        (computation, *key): heaviest(demands_of_value)
        for computation, by_value in walk.demands.items()
        for key, demands_of_value in by_value.items()
    }
    return Layout(walk.initial_layouts, walk.parameters, demands, walk.first_tiles)


def _lowered(module: Module) -> list[Computation]:
    """Return the computations that become steps, callees first."""
    wanted = {module.entry.name}
    for computation in reversed(callees_first(module, only_reachable=True)):
        if computation.name in wanted:
            for instruction in computation.instructions:
                if instruction.opcode in CALLERS:
                    wanted.update(instruction.attributes.called)
    return [c for c in callees_first(module, only_reachable=True) if c.name in wanted]


class _Walk(Backwards):
    """Both walks, and the homes chosen on the way."""

    def __init__(self, module: Module, plan: Plan, machine: Machine, tuning: Tuning) -> None:
        super().__init__(module, machine, tuning)
        self.plan = plan
        self.parameters: dict[int, InitialLayout] = {}
        self._next_tile = 0

    def computation(self, computation: Computation) -> None:
        """Walk through one computation, whose callees were walked through before."""
        mappings: list[Mappings] = []
        count = len(computation.instructions)
        for instruction in each("layouts of ops", computation.instructions, count):
            mappings.append(self._forth(computation, instruction, mappings))
        self.mappings[computation.name] = mappings
        self.backwards(computation, {})

    def entry(self, kept: MappingType[int, int]) -> None:
        """Choose where the entry's parameters are born."""
        entry = self.module.entry
        results = self.mappings[entry.name][entry.root]
        number = 0
        ends: dict[int, Mapping] = {}
        for position in entry.parameters:
            instruction = entry.instructions[position]
            for leaf, shape in enumerate(leaves_of(instruction.shape)):
                if shape.element_type.name == "token":
                    continue
                tensor = Tensor(shape.element_type.name, shape.dimensions)
                follows = kept.get(number, -1)
                mapping = results[follows] if 0 <= follows < len(results) else None
                key = entry.name, instruction.name, leaf
                initial = self._initial_layout(tensor, key, mapping, 1)
                if initial is not None:
                    self.parameters[number] = initial
                    if follows >= 0:
                        ends[follows] = initial.mapping
                number += 1
        if ends:
            self.backwards(entry, ends)

    def _initial_layout(
        self, tensor: Tensor, key: LeafKey, next_mapping: Mapping | None, iterations: int
    ) -> InitialLayout | None:
        demands = heaviest(self.known(*key))
        return self._chosen(tensor, demands, next_mapping, iterations)

    def _chosen(
        self,
        tensor: Tensor,
        demands: Sequence[Demand],
        next_mapping: Mapping | None,
        iterations: int,
    ) -> InitialLayout | None:
        return chosen_initial_layout(
            self.machine, tensor, demands, next_mapping, iterations, self.tuning.code_price
        )

    # --- forth ------------------------------------------------------------------------------------

    def _forth(
        self, computation: Computation, instruction: Instruction, mappings: Sequence[Mappings]
    ) -> Mappings:
        opcode = instruction.opcode
        if opcode == "tuple":
            return tuple(m for i in instruction.operands for m in mappings[i])
        if opcode == "get-tuple-element":
            shape = computation.instructions[instruction.operands[0]].shape
            if isinstance(shape, TupleShape):
                return mappings[instruction.operands[0]][
                    leaf_range(shape, instruction.attributes.integer("index"))
                ]
        if opcode == "while":
            return self._loop(computation, instruction)
        if opcode == "fusion" and not isinstance(instruction.shape, ArrayShape):
            leaves = (instruction._replace(shape=leaf) for leaf in leaves_of(instruction.shape))
            return tuple(self._anchor(computation, each, mappings) for each in leaves)
        if not isinstance(instruction.shape, ArrayShape):
            return (None,) * len(leaves_of(instruction.shape))
        return (self._array_mapping(computation, instruction, mappings),)

    def _array_mapping(
        self, computation: Computation, instruction: Instruction, mappings: Sequence[Mappings]
    ) -> Mapping | None:
        opcode = instruction.opcode
        if opcode == "dot":
            placed = placed_dot(
                self.machine, self.tuning_of(computation, instruction), computation, instruction
            )
            first = self._first_tile(computation, instruction, placed.placement)
            return made_by_dot(computation, instruction, placed, first)
        if opcode in ELEMENTWISE:
            return self._anchor(computation, instruction, mappings)
        if not instruction.operands:
            return None
        if len(mappings[instruction.operands[0]]) != 1:
            return None
        (source,) = mappings[instruction.operands[0]]
        tensor = tensor_of(instruction)
        if opcode == "dynamic-update-slice" and source is None:
            moving = rule_in(computation, instruction).dimensions(0, FactorKind.INDEXED)
            return all_but(tensor, moving, self.machine.chip.tiles_per_ipu)
        if source is None:
            return None
        if opcode == "dynamic-update-slice":
            return source
        if opcode in RESHAPES:
            before = tensor_of(computation.instructions[instruction.operands[0]])
            return reshaped(source, before.shape, tensor.shape)
        order = dimension_order(computation, instruction)
        return None if order is None else transposed(source, order)

    def _anchor(
        self, computation: Computation, instruction: Instruction, mappings: Sequence[Mappings]
    ) -> Mapping | None:
        """Return where an operand of the result's sizes comes to lie, the first that is known."""
        shape = instruction.shape
        if not isinstance(shape, ArrayShape) or not shape.dimensions:
            return None
        for i in instruction.operands:
            other = computation.instructions[i].shape
            if not mappings[i] or mappings[i][0] is None or not isinstance(other, ArrayShape):
                continue
            if other.dimensions == shape.dimensions:
                return mappings[i][0]
        return None

    def _first_tile(
        self, computation: Computation, instruction: Instruction, placement: Placement
    ) -> int:
        """Return where a product's grid begins: narrow ones not all on the first tiles.

        Pairs of tiles that share a bus get the same data only if a grid begins with a whole pair.
        """
        count, tiles = placement.tiles.count, self.machine.chip.tiles_per_ipu
        if 2 * count > tiles:
            return 0
        bus = self.machine.chip.tiles_per_exchange_bus
        first = self._next_tile % (tiles - count + 1) // bus * bus
        self._next_tile = (first + count) % tiles
        self.first_tiles[(computation.name, instruction.name, 0)] = first
        return first

    def _loop(self, computation: Computation, instruction: Instruction) -> Mappings:
        """Choose homes for what a loop carries; return where its results lie."""
        condition, body = _condition_and_body(self.module, instruction)
        results = self.mappings[body.name][body.root]
        trips = self.plan.trips(computation.name, instruction.name) or UNKNOWN_ITERATIONS
        parameter = body.instructions[body.parameters[0]].name
        other = condition.instructions[condition.parameters[0]].name
        mappings: list[Mapping | None] = []
        for leaf, shape in enumerate(leaves_of(instruction.shape)):
            tensor = Tensor(shape.element_type.name, shape.dimensions)
            demands = [*self.known(body.name, parameter, leaf)]
            demands += self.known(condition.name, other, leaf)
            every = [d._replace(times=d.times * trips) for d in heaviest(demands)]
            next_mapping = results[leaf] if leaf < len(results) else None
            initial_layout = self._chosen(tensor, every, next_mapping, trips)
            if initial_layout is not None:
                self.initial_layouts[(computation.name, instruction.name, leaf)] = initial_layout
            mappings.append(initial_layout.mapping if initial_layout is not None else None)
        ends = {leaf: mapping for leaf, mapping in enumerate(mappings) if mapping is not None}
        if ends:
            self.backwards(body, ends)
        return tuple(mappings)


def _condition_and_body(
    module: Module, instruction: Instruction
) -> tuple[Computation, Computation]:
    """Return a loop's computations, in whichever order its attributes stand."""
    condition, body = (module.computation[name] for name in instruction.attributes.called)
    if instruction.attributes.text("condition") not in ("", condition.name):
        return body, condition
    return condition, body
