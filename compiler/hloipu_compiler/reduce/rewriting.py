"""Selects instructions, rebuilds computations without them or with others, and cleans them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from hloipu_compiler.analysis.call_graph import CallSite, call_sites, callees_first
from hloipu_compiler.ir.attributes import Attributes, Value
from hloipu_compiler.ir.graph import Computation, Instruction, Module, with_computation
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Shape, TupleShape
from hloipu_compiler.passes.framework.attribute_edits import without
from hloipu_compiler.passes.framework.names import Names
from hloipu_runtime.element_types import Kind

INTERFACE_ATTRIBUTES = frozenset(
    "entry_computation_layout input_output_alias buffer_donor alias_passthrough_params "
    "allow_spmd_sharding_propagation_to_parameters "
    "allow_spmd_sharding_propagation_to_output".split()
)
"""Header attributes that describe the entry's parameters and result, and fall with these."""
SINGLE_COMPUTATIONS = frozenset(
    "to_apply calls condition body select scatter true_computation false_computation".split()
)
COMPUTATION_LISTS = frozenset("branch_computations called_computations".split())


@dataclass(frozen=True, slots=True)
class Key:
    """An instruction by its computation's name and its own, and which of several edits is meant."""

    computation: str
    instruction: str
    choice: int = 0


def instructions_of(
    module: Module, wanted: Callable[[Computation, int, Instruction], bool]
) -> list[Key]:
    """Return keys of instructions, callers' last ones first: what depends on most comes first."""
    computations = sorted(module.computations, key=lambda c: c.name != module.entry.name)
    return [
        Key(c.name, c.instructions[i].name)
        for c in computations
        for i in range(len(c.instructions) - 1, -1, -1)
        if wanted(c, i, c.instructions[i])
    ]


def by_computation(keys: Sequence[Key]) -> dict[str, dict[str, Key]]:
    """Return keys by computation and instruction."""
    keys_by_computation: dict[str, dict[str, Key]] = {}
    for key in keys:
        keys_by_computation.setdefault(key.computation, {})[key.instruction] = key
    return keys_by_computation


class Draft:
    """A computation being made from another, instruction by instruction."""

    def __init__(self, old: Computation) -> None:
        self.old = old
        self.made: list[Instruction] = []
        self.place: dict[int, int] = {}
        """Position in the old computation -> position in the new one."""
        self._names = Names(instruction.name for instruction in old.instructions)

    def copy(self, position: int, **changes: object) -> int:
        """Copy an old instruction, its operands moved along."""
        instruction = self.old.instructions[position]
        moved = instruction._replace(operands=tuple(self.place[i] for i in instruction.operands))
        self.made.append(moved._replace(**changes))  # type: ignore[arg-type]
        self.place[position] = len(self.made) - 1
        return self.place[position]

    def add(
        self,
        stem: str,
        opcode: str,
        shape: Shape,
        operands: Sequence[int] = (),
        *,
        attributes: Attributes | None = None,
        literal: Literal | None = None,
        parameter_number: int = -1,
    ) -> int:
        """Append a new instruction on new positions."""
        self.made.append(
            Instruction(
                self._names.fresh(stem), opcode, shape, tuple(operands),
                attributes or Attributes({}), literal=literal, parameter_number=parameter_number,
            )
        )  # fmt: skip
        return len(self.made) - 1

    def adopt(self, instruction: Instruction, operands: Sequence[int]) -> int:
        """Append an instruction of another computation, under a name of its own."""
        attributes = instruction.attributes
        if "control-predecessors" in attributes:
            attributes = without(attributes, {"control-predecessors"})
        adopted = instruction._replace(
            name=self._names.fresh(instruction.name),
            operands=tuple(operands),
            attributes=attributes,
        )
        self.made.append(adopted)
        return len(self.made) - 1

    def zero(self, shape: Shape) -> int:
        """Append what makes a zero of a shape: a constant and its broadcast, tuples of these."""
        if isinstance(shape, TupleShape):
            return self.add("zeros", "tuple", shape, [self.zero(e) for e in shape.elements])
        if isinstance(shape, BufferShape) or shape.element_type.kind is Kind.OPAQUE:
            raise NotReducibleError
        if shape.element_type.kind is Kind.TOKEN:
            return self.add("token", "after-all", shape)
        text = "false" if shape.element_type.kind is Kind.PREDICATE else "0"
        if shape.element_type.is_complex:
            text = "(0, 0)"
        scalar = self.add("zero", "constant", ArrayShape(shape.element_type), literal=Literal(text))
        if not shape.dimensions:
            return scalar
        return self.add("zeros", "broadcast", shape, [scalar], attributes=NO_DIMENSIONS)

    def finish(self, root: int | None = None) -> Computation:
        """Return the new computation; the root is the old one's unless another place is given."""
        place = self.place[self.old.root] if root is None else root
        return Computation(self.old.name, tuple(self.made), place, self.old.execution_thread)


def edited(
    module: Module, keys: Sequence[Key], edit: Callable[[Draft, int, Instruction, Key], None]
) -> Module:
    """Return the module with the named instructions placed by `edit`, all others copied."""
    for name, wanted in by_computation(keys).items():
        draft = Draft(module.computation[name])
        for i, instruction in enumerate(draft.old.instructions):
            if instruction.name in wanted:
                edit(draft, i, instruction, wanted[instruction.name])
            else:
                draft.copy(i)
        module = with_computation(module, draft.finish())
    return module


class NotReducibleError(Exception):
    """An edit that has no meaning for this instruction."""


NO_DIMENSIONS = Attributes({"dimensions": ()})


def calling(values: Mapping[str, Value]) -> Attributes:
    """Return attributes, the names of the computations in them gathered."""
    called: list[str] = []
    for key, value in values.items():
        if key in SINGLE_COMPUTATIONS and isinstance(value, str):
            called.append(value)
        elif key in COMPUTATION_LISTS and isinstance(value, tuple):
            called += [name for name in value if isinstance(name, str)]
    return Attributes(values, tuple(called))


def without_interface(module: Module) -> Module:
    """Return the module without what its header says of the entry's parameters and result."""
    if INTERFACE_ATTRIBUTES.isdisjoint(module.attributes):
        return module
    return replace(module, attributes=without(module.attributes, INTERFACE_ATTRIBUTES))


PASSES_OPERANDS = frozenset({"call", "fusion"})
"""Opcodes whose operands are the parameters of what they call, one for one."""


def cleaned(module: Module) -> Module:
    """Return the module without dead instructions, dead parameters of callees, dead computations.

    The entry keeps its parameters.
    """
    reachable = callees_first(module, only_reachable=True)
    for computation in reachable:
        live = without_dead(module.computation[computation.name])
        module = with_computation(module, live)
        if live.name != module.entry.name:
            module = without_unused_parameters(module, live)
    called_names = {c.name for c in callees_first(module, only_reachable=True)}
    computations = tuple(c for c in module.computations if c.name in called_names)
    names = [c.name for c in computations]
    return replace(module, computations=computations, entry_position=names.index(module.entry.name))


def without_dead(computation: Computation) -> Computation:
    """Return a computation without what neither its root nor an effect needs."""
    alive = [
        i == computation.root or op.parameter_number >= 0 or has_effect(op.opcode)
        for i, op in enumerate(computation.instructions)
    ]
    for i in range(len(alive) - 1, -1, -1):
        if alive[i]:
            for operand in computation.instructions[i].operands:
                alive[operand] = True
    draft = Draft(computation)
    names = {op.name for op, a in zip(computation.instructions, alive, strict=True) if a}
    for i, instruction in enumerate(computation.instructions):
        if alive[i]:
            before = instruction.attributes.get("control-predecessors", ())
            gone = isinstance(before, tuple) and not names.issuperset(before)
            attributes = (
                without(instruction.attributes, {"control-predecessors"})
                if gone
                else instruction.attributes
            )
            draft.copy(i, attributes=attributes)
    return draft.finish()


def has_effect(opcode: str) -> bool:
    """Whether an instruction does something besides making its value."""
    op = OPS.get(opcode)
    return op is not None and Trait.SIDE_EFFECT in op.traits


def without_unused_parameters(module: Module, callee: Computation) -> Module:
    """Drop parameters that nothing in a callee uses, where only calls and fusions call it."""
    sites = call_sites(module)[callee.name]
    if not all(s.caller.instructions[s.position].opcode in PASSES_OPERANDS for s in sites):
        return module
    unused = {
        number
        for number, i in enumerate(callee.parameters)
        if not callee.users[i] and i != callee.root
    }
    if not unused:
        return module
    module = with_computation(module, without_parameters(callee, unused))
    for name in {s.caller.name for s in sites}:
        module = with_computation(module, _without_operands(module, name, sites, unused))
    return module


def without_parameters(computation: Computation, numbers: Collection[int]) -> Computation:
    """Return a computation without some unused parameters, the others renumbered."""
    draft = Draft(computation)
    left = [n for n in range(len(computation.parameters)) if n not in numbers]
    for i, instruction in enumerate(computation.instructions):
        if instruction.parameter_number < 0:
            draft.copy(i)
        elif instruction.parameter_number not in numbers:
            draft.copy(i, parameter_number=left.index(instruction.parameter_number))
    return draft.finish()


def _without_operands(
    module: Module, caller: str, sites: tuple[CallSite, ...], numbers: Collection[int]
) -> Computation:
    computation = module.computation[caller]
    positions = {s.position for s in sites if s.caller.name == caller}
    draft = Draft(computation)
    for i, instruction in enumerate(computation.instructions):
        if i in positions:
            operands = [
                draft.place[o] for n, o in enumerate(instruction.operands) if n not in numbers
            ]
            attributes = without(instruction.attributes, {"output_to_operand_aliasing"})
            draft.copy(i, operands=tuple(operands), attributes=attributes)
        else:
            draft.copy(i)
    return draft.finish()
