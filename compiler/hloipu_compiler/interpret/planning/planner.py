"""Plans a computation: slots for leaves, steps for ops, liveness for frees."""

from collections.abc import Sequence

from hloipu_compiler.analysis.order import effectful_computations, live_positions
from hloipu_compiler.interpret.planning.constants import constant_leaves
from hloipu_compiler.interpret.planning.plan import TOKEN_VALUE, Array, Plan, Step
from hloipu_compiler.interpret.planning.site import (
    LOWERINGS,
    Effects,
    Lowering,
    Region,
    Site,
    leaf_count,
)
from hloipu_compiler.ir.annotations import is_identity
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_runtime.errors import UnsupportedError

Slots = tuple[int, ...]

FORWARDED = frozenset({"copy", "opt-barrier", "domain", "add-dependency"})
"""Ops whose value is their first operand's."""

VIEWS_OF_CONSTANTS = frozenset({"broadcast", "iota", "transpose", "slice"})
"""Ops that are evaluated while planning where all they read are constants: nearly free views."""


SCALAR_IDENTITIES = frozenset({"reshape", "broadcast", "bitcast", "transpose", "reverse", "slice"})
"""Ops that do nothing to a scalar of the same type, whatever they do to an array."""


class Planner:
    """Makes plans for the computations of one module, each once."""

    def __init__(self, module: Module, effects: Effects) -> None:
        self.module = module
        self.effects = effects
        self._effectful = effectful_computations(module)
        self._plans: dict[str, Plan] = {}
        self._lifted: dict[str, Plan] = {}
        self._regions: dict[str, Region] = {}

    def plan(self, name: str) -> Plan:
        """Return the plan of a computation, made on the first request."""
        if name not in self._plans:
            self._plans[name] = self._build(self.module.computation[name], lifted=False)
        return self._plans[name]

    def lifted_plan(self, name: str) -> Plan:
        """Return the plan of a scalar computation that takes arrays in the place of scalars."""
        if name not in self._lifted:
            self._lifted[name] = self._build(self.module.computation[name], lifted=True)
        return self._lifted[name]

    def region_at(self, computation: Computation) -> Region:
        """Return a scalar computation that is not in the module as a function on whole arrays."""
        from hloipu_compiler.interpret.planning.regions import region_function

        return region_function(self._build(computation, lifted=True))

    def region(self, name: str) -> Region:
        """Return a scalar computation as a function on whole arrays, made on the first request."""
        if name not in self._regions:
            from hloipu_compiler.interpret.planning.regions import region_function

            self._regions[name] = region_function(self.lifted_plan(name))
        return self._regions[name]

    def site(self, computation: Computation, instruction: Instruction) -> Site:
        """Return what a lowering may look at."""
        return Site(
            self.module,
            computation,
            instruction,
            tuple(computation.instructions[x].shape for x in instruction.operands),
            self.plan,
            self.region,
            self.region_at,
            self.effects,
        )

    def _build(self, computation: Computation, *, lifted: bool) -> Plan:
        draft = _Draft(self, computation, lifted)
        live = live_positions(computation, self._effectful)
        for position, instruction in enumerate(computation.instructions):
            draft.place(instruction if live[position] else None)
        return draft.finish()


class _Draft:
    """A plan under construction."""

    def __init__(self, planner: Planner, computation: Computation, lifted: bool) -> None:
        self.planner = planner
        self.computation = computation
        self.lifted = lifted
        self.values: list[Slots] = []
        self.steps: list[Step] = []
        self.constants: list[tuple[int, Array]] = []
        self.constant_values: dict[int, Array] = {}
        self.folded: list[tuple[Instruction, Slots]] = []
        self.slot_count = 0
        self.parameter_slots: dict[int, Slots] = {}
        for position in computation.parameters:
            parameter = computation.instructions[position]
            slots = self._new_slots(leaf_count(parameter.shape))
            self.parameter_slots[parameter.parameter_number] = slots
        self.parameter_count = self.slot_count

    def _new_slots(self, count: int) -> Slots:
        first = self.slot_count
        self.slot_count += count
        return tuple(range(first, self.slot_count))

    def place(self, instruction: Instruction | None) -> None:
        """Assign slots to the next instruction; None stands for a dead one."""
        self.values.append(() if instruction is None else self._slots_of(instruction))

    def _slots_of(self, instruction: Instruction) -> Slots:
        if instruction.opcode == "parameter":
            return self.parameter_slots[instruction.parameter_number]
        if instruction.opcode == "tuple":
            return tuple(slot for operand in instruction.operands for slot in self.values[operand])
        if instruction.opcode == "get-tuple-element":
            return self._element(instruction)
        if self.lifted and instruction.opcode == "bitcast" and self._changes_type(instruction):
            # Of a scalar, all that a bitcast does: XLA writes one into its comparators of floats.
            instruction = instruction._replace(opcode="bitcast-convert")
        if instruction.opcode in FORWARDED or (
            self.lifted and (instruction.opcode in SCALAR_IDENTITIES or is_identity(instruction))
        ):
            return self.values[instruction.operands[0]]
        if instruction.opcode == "constant":
            return self._constants(constant_leaves(instruction))
        if instruction.opcode == "after-all":
            return self._constants([TOKEN_VALUE])
        action = self._lowering(instruction)(self.planner.site(self.computation, instruction))
        inputs = tuple(slot for operand in instruction.operands for slot in self.values[operand])
        if instruction.opcode in VIEWS_OF_CONSTANTS and all(
            slot in self.constant_values for slot in inputs
        ):
            # A view costs no memory to keep, and a loop makes it over and over.
            slots = self._constants(action([self.constant_values[slot] for slot in inputs]))
            self.folded.append((instruction, slots))
            return slots
        outputs = self._new_slots(leaf_count(instruction.shape))
        self.steps.append(Step(action, inputs, outputs, (), instruction))
        return outputs

    def _lowering(self, instruction: Instruction) -> Lowering:
        lowering: Lowering | None = None
        if self.lifted:
            from hloipu_compiler.interpret.planning.lifted import LIFTED

            lowering = LIFTED.get(instruction.opcode)
        if lowering is None and (not self.lifted or instruction.opcode in ELEMENTWISE):
            lowering = LOWERINGS.get(instruction.opcode)
        if lowering is None:
            where = " inside a computation applied to elements" if self.lifted else ""
            raise UnsupportedError(
                "E0451",
                f"instruction {instruction.name!r}: the evaluator has no rule for "
                f"{instruction.opcode!r}{where}",
                hint="rewrite the module without this op, or drop what needs it",
            )
        return lowering

    def _constants(self, leaves: Sequence[Array]) -> Slots:
        slots = self._new_slots(len(leaves))
        self.constants += zip(slots, leaves, strict=True)
        self.constant_values.update(zip(slots, leaves, strict=True))
        return slots

    def _changes_type(self, instruction: Instruction) -> bool:
        before = self.computation.instructions[instruction.operands[0]].shape
        after = instruction.shape
        return (
            isinstance(before, ArrayShape)
            and isinstance(after, ArrayShape)
            and before.element_type is not after.element_type
        )

    def _element(self, instruction: Instruction) -> Slots:
        shape = self.computation.instructions[instruction.operands[0]].shape
        index = instruction.attributes.integer("index")
        if not isinstance(shape, TupleShape):
            return self.values[instruction.operands[0]]
        first = sum(map(leaf_count, shape.elements[:index]))
        return self.values[instruction.operands[0]][
            first : first + leaf_count(shape.elements[index])
        ]

    def finish(self) -> Plan:
        """Find each slot's last reader and close the plan."""
        results = self.values[self.computation.root]
        last_reader: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            for slot in (*step.inputs, *step.outputs):
                last_reader[slot] = number
        frees: list[list[int]] = [[] for _ in self.steps]
        result_slots = set(results)
        for slot, number in last_reader.items():
            if slot not in result_slots and slot not in self.steps[number].outputs:
                frees[number].append(slot)
        read_slots = result_slots.union(*(step.inputs for step in self.steps))
        (unread,) = self._new_slots(1)
        steps = tuple(
            step._replace(
                frees=tuple(slots),
                outputs=tuple(slot if slot in read_slots else unread for slot in step.outputs),
            )
            for step, slots in zip(self.steps, frees, strict=True)
        )
        unused = (
            i for i in range(self.parameter_count) if i not in last_reader and i not in result_slots
        )
        return Plan(
            self.computation.name,
            self.slot_count,
            self.parameter_count,
            tuple(self.constants),
            tuple(self.folded),
            steps,
            results,
            tuple(unused),
        )
