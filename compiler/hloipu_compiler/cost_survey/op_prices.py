"""Cycles and bytes of every entry op, from a program of that op alone on one IPU.

Ops that are alike (same op, shapes, attributes and computations called) are priced once, so that
time goes with the kinds of ops that there are, and not with layers. Compared with the whole program
rearrangements between ops are missing, and what fusion saves; barriers of elementwise ops are left
out, since they mostly run together with others.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from hloipu_compiler.cost_survey.program_bytes import program_bytes
from hloipu_compiler.ir.attribute_kinds import COMPUTATION_KINDS, INSTRUCTION_KINDS
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.ops import Trait, with_trait
from hloipu_compiler.lowering.core.context import LOWERINGS
from hloipu_compiler.memo import Memo
from hloipu_compiler.partition.stages.cutting import work
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import with_operands
from hloipu_compiler.plan.participants import meets_others
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.reached import reached
from hloipu_runtime.watching import each, unheard

_CALLING = frozenset(key for key, kind in INSTRUCTION_KINDS.items() if kind in COMPUTATION_KINDS)
_SHORT = 64
"""Characters of a literal that are kept; of longer ones a digest is."""


def form_of(module: Module) -> Hashable:
    """Return what modules have in common that differ in names and source locations only."""
    number = {c.name: n for n, c in enumerate(module.computations)}
    computations = tuple(
        (c.root, tuple(_form(instruction, number) for instruction in c.instructions))
        for c in module.computations
    )
    return number[module.entry.name], computations


def _form(instruction: Instruction, number: Mapping[str, int]) -> Hashable:
    called = tuple(number[name] for name in instruction.attributes.called)
    attributes = tuple(
        (key, None if key in _CALLING else value) for key, value in instruction.attributes.items()
    )
    literal = None if instruction.literal is None else _literal(instruction.literal)
    return (
        instruction.opcode, instruction.shape, instruction.operands, attributes, called,
        instruction.backend_config, literal, instruction.parameter_number,
    )  # fmt: skip


def _literal(literal: Literal) -> Hashable:
    if literal.array is not None:
        array = literal.array
        return str(array.dtype), array.shape, blake2b(array.tobytes()).digest()
    text = literal.text
    return text if len(text) <= _SHORT else blake2b(text.encode()).digest()


FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast reshape after-all iota broadcast "
    "opt-barrier add-dependency copy infeed outfeed partition-id replica-id".split()
)
"""Nothing is computed for them, or it goes together with what reads them."""
_KEPT = frozenset(("tuple", "iota", "broadcast", "get-tuple-element"))
"""Written out where they are operands: how an op is computed depends on what they are."""
ELEMENTWISE = with_trait(Trait.ELEMENTWISE)
_NOT_OF_COST = frozenset(("frontend_attributes", "sharding", "control-predecessors"))
_MOST_KINDS = 400
"""Programs that are made; kinds beyond that are guessed, in the order of the text."""


class OpPrice(NamedTuple):
    """Cycles and bytes of an op."""

    cycles: float
    work_bytes: int = 0
    """Of all tiles together, while it works, beside what it reads and leaves."""
    code_bytes: int = 0
    """On a tile; without the code of vertices, which ops share."""
    vertex_code: Mapping[Hashable, int] = {}
    """What codelets it runs -> bytes of their code."""
    given_bytes: tuple[int, ...] = ()
    """Of all tiles together, each operand where the op wants it; 0: not known."""


NOTHING = OpPrice(0.0)


class OneOp(NamedTuple):
    """A module of one op, whose program tells the price of it and of all that are alike."""

    module: Module
    slots: tuple[int, ...]
    """Which parameter of the module each operand is, or -1."""

    @property
    def key(self) -> Hashable:
        """Key that ops of equal cost share, in other modules too."""
        return form_of(self.module), self.slots

    def price(
        self,
        program_of: Callable[[Module], Program],
        machine: Machine,
        tuning: Tuning,
        participants: tuple[int, int] = (1, 1),
    ) -> OpPrice | None:
        """Return what the op takes by itself, from its program before steps are merged.

        None for one that needs its surroundings. `program_of`: compiles a module by that tuning.
        """

        def compiled_price() -> OpPrice | None:
            try:
                with unheard():
                    return self._price_in(program_of(self.module), machine)
            except HloipuError:  # such as a collective
                return None

        return PRICE_MEMO.of((machine, tuning, self.key, participants), compiled_price)

    def _price_in(self, program: Program, machine: Machine) -> OpPrice:
        forms = Forms(program, machine)
        costs = step_charges(program, machine, forms)
        spent = estimate(program, machine, costs=costs).spent
        bytes_by_kind = program_bytes(program, machine, forms)
        working = spent.compute.cycles + spent.exchange.cycles
        is_elementwise = self.module.entry.instructions[-1].opcode in ELEMENTWISE
        cycles = working if is_elementwise else working + spent.sync.cycles
        operand_bytes = tuple(
            bytes_by_kind.parameter_bytes[n] if 0 <= n < len(bytes_by_kind.parameter_bytes) else 0
            for n in self.slots
        )
        return OpPrice(
            float(cycles),
            bytes_by_kind.working,
            bytes_by_kind.code,
            bytes_by_kind.vertex_code,
            operand_bytes,
        )


class OpKinds:
    """The kinds of ops in a flat module's entry: ops that are alike take the same."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.kinds: list[int] = []
        """Of each op; -1 for what is no work."""
        self.examples: list[Instruction] = []
        """The first op of each kind."""
        look, entry = _Look(module), module.entry
        number: dict[Hashable, int] = {}
        for instruction in entry.instructions:
            if instruction.opcode in FREE:
                self.kinds.append(-1)
                continue
            kind = number.setdefault(look.of(entry, instruction), len(number))
            if kind == len(self.examples):
                self.examples.append(instruction)
            self.kinds.append(kind)

    def prices(
        self,
        program_of: Callable[[Module], Program],
        machine: Machine,
        tuning: Tuning,
        participants: tuple[int, int] = (1, 1),
    ) -> list[OpPrice]:
        """Return what each op takes; `program_of`: compiles one alone, by that tuning.

        `participants`: replicas and partitions that it has collectives meet.
        """
        entry, of_kind = self.module.entry, list[OpPrice]()
        for number, instruction in enumerate(
            each("pricing ops", self.examples, len(self.examples))
        ):
            price = None
            if number < _MOST_KINDS and instruction.opcode in LOWERINGS:
                op = alone(self.module, entry, instruction)
                counts = participants if meets_others(op.module) else (1, 1)
                price = op.price(program_of, machine, tuning, counts)
            of_kind.append(OpPrice(work(entry, instruction)) if price is None else price)
        return [NOTHING if kind < 0 else of_kind[kind] for kind in self.kinds]


PRICE_MEMO: Memo[OpPrice | None] = Memo(8192)
"""Prices of ops; steps that are compiled again and again, as in a search, mostly have the same. An
entry has a few kilobytes."""


class _Look:
    """Keys of a module's ops: equal for ops of equal cost."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.names = frozenset(module.computation)
        self.looks: dict[str, Hashable] = {}

    def of(self, computation: Computation, instruction: Instruction) -> Hashable:
        """Return what ops have in common that cost the same."""
        called = tuple(self._look_of(name) for name in instruction.attributes.called)
        attributes = tuple(
            (key, str(value))
            for key, value in instruction.attributes.items()
            if key not in _NOT_OF_COST and str(value) not in self.names
        )
        operands = tuple(_kind(computation, i) for i in instruction.operands)
        return instruction.opcode, str(instruction.shape), operands, attributes, called

    def _look_of(self, name: str) -> Hashable:
        if name not in self.looks:
            computation = self.module.computation[name]
            self.looks[name] = hash(
                tuple(
                    (self.of(computation, op), op.operands, str(op.literal))
                    for op in computation.instructions
                )
            )
        return self.looks[name]


def _kind(computation: Computation, position: int) -> str:
    """Return an operand's shape, or a small constant's value."""
    instruction = computation.instructions[position]
    return (
        f"{instruction.shape}" if instruction.literal is None else f"{instruction.shape} constant"
    )


def alone(module: Module, computation: Computation, instruction: Instruction) -> OneOp:
    """Return a module of one op: what it reads are parameters, but for constants and tuples."""
    instructions: list[Instruction] = []
    names = Names([instruction.name])
    operands = _written(computation, instruction.operands, instructions, names)
    instructions.append(with_operands(instruction, tuple(operands)))
    entry = Computation("alone", tuple(instructions), len(instructions) - 1)
    callees = _called(module, instruction)
    slots = tuple(instructions[i].parameter_number for i in operands)
    return OneOp(Module("alone", (*callees, entry), len(callees), Attributes({})), slots)


def _written(
    entry: Computation, operands: Sequence[int], instructions: list[Instruction], names: Names
) -> list[int]:
    """Write operands: constants, broadcasts and tuples as they are, others as parameters."""
    at: dict[int, int] = {}
    waiting = list(reversed(operands))
    parameters = 0
    while waiting:
        i = waiting[-1]
        if i in at:
            waiting.pop()
            continue
        old = entry.instructions[i]
        is_written = is_written_out(entry, old)
        missing = [j for j in old.operands if j not in at] if is_written else []
        if missing:
            waiting.extend(missing)
            continue
        waiting.pop()
        at[i] = len(instructions)
        if is_written:
            moved = with_operands(old, tuple(at[j] for j in old.operands))
            instructions.append(moved._replace(name=names.fresh(old.name)))
        else:
            instructions.append(
                Instruction(
                    names.fresh(f"p{parameters}"), "parameter", old.shape,
                    parameter_number=parameters,
                )
            )  # fmt: skip
            parameters += 1
    return [at[i] for i in operands]


def is_written_out(entry: Computation, operand: Instruction) -> bool:
    """Whether the module of an op alone has an operand as it is, not as a parameter."""
    if operand.opcode == "get-tuple-element":
        return entry.instructions[operand.operands[0]].opcode == "tuple"
    return operand.literal is not None or operand.opcode in _KEPT


def _called(module: Module, instruction: Instruction) -> tuple[Computation, ...]:
    below = module.computation
    wanted = set(reached(instruction.attributes.called, lambda name: below[name].called))
    return tuple(c for c in module.computations if c.name in wanted)


def kept_copies(entry: Computation, prices: Sequence[OpPrice]) -> dict[tuple[int, int], list[int]]:
    """Return copies of parameters that stay where ops want them, with these ops.

    A copy is known by the parameter's position and its bytes; the parameter itself lies otherwise.
    """
    readers_by_copy: dict[tuple[int, int], list[int]] = {}
    for position, instruction in enumerate(entry.instructions):
        for i, size in zip(instruction.operands, prices[position].given_bytes, strict=False):
            source = source_of(entry, i)
            if size and entry.instructions[source].parameter_number >= 0:
                readers_by_copy.setdefault((source, size), []).append(position)
    return readers_by_copy


def source_of(entry: Computation, position: int) -> int:
    """Return the op whose array a value is only another view of."""
    while entry.instructions[position].opcode in ("reshape", "bitcast"):
        position = entry.instructions[position].operands[0]
    return position
