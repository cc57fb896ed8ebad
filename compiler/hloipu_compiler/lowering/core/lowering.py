"""Lowers computations instruction by instruction, and the entry with its streams."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hloipu_compiler.analysis.code_size import code_bytes, summed_code_bytes
from hloipu_compiler.analysis.live_bytes import RUNNING
from hloipu_compiler.analysis.order import effectful_computations, live_positions
from hloipu_compiler.errors import CodegenError
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import TupleShape, leaf_range, leaves_of
from hloipu_compiler.layout.walk import layout_of
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LOWERINGS, Lowering, LoweringContext
from hloipu_compiler.lowering.core.late_copies import Arrivals, first_uses
from hloipu_compiler.lowering.core.stream_names import require_unique
from hloipu_compiler.lowering.core.values import LastUses, TileTensor, Token, Value
from hloipu_compiler.plan.alive_values import alive_bytes
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.planners.op_grids import Demand
from hloipu_compiler.planners.planned import Record
from hloipu_compiler.planners.tuning import DEFAULT_TUNING, Tuning, tuning_within
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Mapping as TileMapping
from hloipu_runtime.program.program import Port, Program, Role
from hloipu_runtime.watching import each

if TYPE_CHECKING:
    from hloipu_compiler.plan.own_numbers import OwnNumbers

_RUNNING = frozenset({"while", "conditional"})
"""Ops whose computations may be on several IPUs: their ops bring what they read themselves."""

_SCARCE_PERCENT = 60
"""Of a tile's memory: with more taken, parameters come in only when they are read."""


def lower_computation(
    context: LoweringContext,
    computation: Computation,
    arguments: Sequence[Sequence[Value]],
    owned: frozenset[Value],
    destinations: Mapping[int, TileTensor] | None = None,
) -> list[Value]:
    """Write a called computation's steps into the innermost block; return its results.

    `owned`: leaves among the arguments that die here, after their last use. `destinations`: what
    is overwritten by some of the results, by their numbers.
    """
    return lower_instructions(
        context.builder, context.module, context.plan, computation, arguments, owned, destinations
    )


def lower_instructions(
    builder: Builder,
    module: Module,
    plan: Plan,
    computation: Computation,
    arguments: Sequence[Sequence[Value]],
    owned: frozenset[Value],
    destinations: Mapping[int, TileTensor] | None = None,
    arrivals: Arrivals | None = None,
) -> list[Value]:
    """Write a computation's steps into the innermost block; return the leaves of its result."""
    ends = _ends(computation, destinations or {})
    outer_preferences = builder.preferences
    if builder.effectful is None:
        builder.effectful = effectful_computations(module)
    live = live_positions(computation, builder.effectful)
    own = _own_numbers(computation, plan)
    unread = own.unread if own else frozenset()
    given = [leaf for leaves in arguments for leaf in leaves]
    last_uses = LastUses(computation, [leaf for leaf in given if leaf not in owned])
    known: list[Sequence[Value]] = []
    late = arrivals is not None and bool(arrivals.waiting)
    standing, builder.standing = builder.standing, frozenset()
    alive = alive_bytes(module, plan, computation, standing, late=late)
    outside, outside_at = builder.alive_bytes, builder.alive_at
    builder.alive_at = alive
    here = builder.ipu
    whole = builder.tuning.counts_called_code
    builder.code_bytes = builder.code_bytes or code_bytes_of(module, plan, whole=whole)
    if computation is module.entry:
        builder.may_fit = _taken_bytes(builder, alive) <= builder.machine.usable_bytes
    count = len(computation.instructions)
    for position, instruction in enumerate(each("ops lowered", computation.instructions, count)):
        if not live[position] or position in unread:
            known.append(())
        elif instruction.parameter_number >= 0:
            known.append(arguments[instruction.parameter_number])
        elif instruction.opcode == "tuple":
            known.append([leaf for i in instruction.operands for leaf in known[i]])
        elif instruction.opcode == "get-tuple-element":
            known.append(_element(computation, instruction, known))
        elif instruction.opcode == "after-all":
            known.append([Token()])
        else:
            builder.origin = instruction.name
            if builder.ipus > 1:
                builder.ipu = plan.ipus.get((computation.name, instruction.name), here)
            builder.alive_bytes = outside + alive[position]
            known_preferences = builder.layout.demands.get(
                (computation.name, instruction.name, 0), ()
            )
            builder.preferences = known_preferences or builder.region_preferences
            builder.destination = None
            if position == computation.root:
                builder.preferences = builder.preferences or outer_preferences
            storage = ends.get(position)
            if storage is not None:
                lies = builder.variables[storage.variable].mapping
                if all(preference.born != lies for preference in builder.preferences):
                    builder.preferences = (
                        *builder.preferences,
                        Demand(lies, lies, 1, instruction.name),
                    )
                on_ipu = builder.variables[storage.variable].ipu
                if on_ipu == builder.ipu and not last_uses.is_read_after(position, storage):
                    builder.destination = storage.variable
            operands = tuple(tuple(known[i]) for i in instruction.operands)
            if arrivals is not None:
                arrivals.need(operands)
            dies = tuple(last_uses.is_last_use(position, leaves) for leaves in operands)
            if builder.ipus > 1 and instruction.opcode not in _RUNNING:
                operands = tuple(tuple(map(builder.brought_here, leaves)) for leaves in operands)
            context = LoweringContext(
                builder, module, plan, computation, instruction, operands, dies
            )
            opcode = own.opcode(position) if own else ""
            known.append(_lowering(instruction, opcode)(context))
        last_uses.hold(position, known[position])
    builder.alive_bytes, builder.alive_at = outside, outside_at
    builder.destination, builder.ipu = None, here
    return list(known[computation.root])


def _ends(
    computation: Computation, destinations: Mapping[int, TileTensor]
) -> dict[int, TileTensor]:
    """Return, by position, where arrays end that are parts of the result, each of one only."""
    root = computation.instructions[computation.root]
    if root.opcode != "tuple" or not destinations:
        return {}
    ends: dict[int, TileTensor] = {}
    leaf = 0
    for i in root.operands:
        if leaf in destinations and root.operands.count(i) == 1:
            ends[i] = destinations[leaf]
        leaf += len(leaves_of(computation.instructions[i].shape))
    return ends


def code_bytes_of(module: Module, plan: Plan, *, whole: bool = False) -> int:
    """Return a guess at the code that the entry makes on a tile, of the IPU that has most.

    That of a function, which several calls share, is in it once; so is, of the `whole` program,
    that of loops, branches and stages.
    """
    entry = module.entry
    times = Counter(op.attributes.called for op in entry.instructions if op.opcode == "call")
    bytes_by_ipu: dict[int, int] = {}
    inside: set[tuple[int, str]] = set()
    for instruction in entry.instructions:
        ipu = plan.ipus.get((entry.name, instruction.name), 0)
        bytes_by_ipu[ipu] = bytes_by_ipu.get(ipu, 0) + code_bytes(instruction)
        counts = (
            instruction.opcode in RUNNING if whole else times[instruction.attributes.called] > 1
        )
        waiting = list(instruction.attributes.called) if counts else []
        while waiting:
            name = waiting.pop()
            if (ipu, name) in inside:
                continue
            inside.add((ipu, name))
            within = module.computation[name].instructions
            bytes_by_ipu[ipu] += summed_code_bytes(within)
            waiting += [n for i in within if i.opcode in RUNNING for n in i.attributes.called]
    return max(bytes_by_ipu.values(), default=0)


def _product_tunings(
    builder: Builder, module: Module, plan: Plan, *, late: bool
) -> dict[str, Tuning]:
    alive = alive_bytes(module, plan, module.entry, late=late)
    machine, tuning = builder.machine, builder.tuning
    may_fit = _taken_bytes(builder, alive) <= machine.usable_bytes
    return {
        op.name: tuning_within(machine, tuning, alive[position], builder.code_bytes)
        if may_fit
        else tuning
        for position, op in enumerate(module.entry.instructions)
        if op.opcode == "dot"
    }


def _is_scarce(builder: Builder, module: Module, plan: Plan) -> bool:
    """Whether values that are alive at once, and code, may take most of the memory."""
    taken = _taken_bytes(builder, alive_bytes(module, plan, module.entry, late=False))
    return 100 * taken > _SCARCE_PERCENT * builder.machine.usable_bytes


def taken_share(module: Module, plan: Plan, machine: Machine) -> float:
    """Return an estimate of the share of the fullest IPU's memory that code and values take."""
    code = min(machine.memory.executable_bytes, code_bytes_of(module, plan))
    alive = max(alive_bytes(module, plan, module.entry, late=False), default=0)
    return (code + alive / machine.chip.tiles_per_ipu) / machine.usable_bytes


def _taken_bytes(builder: Builder, alive: Sequence[int]) -> int:
    """Return the bytes of a tile that code and values take, which lie on all tiles evenly."""
    machine = builder.machine
    code_bytes = builder.code_bytes if builder.tuning.code_memory else 0
    code = min(machine.memory.executable_bytes, code_bytes)
    return code + max(alive, default=0) // machine.chip.tiles_per_ipu


def _own_numbers(computation: Computation, plan: Plan) -> "OwnNumbers | None":
    """Return what participants know in a computation; None where they do not ask who they are."""
    if not any(x.opcode in ("partition-id", "replica-id") for x in computation.instructions):
        return None
    from hloipu_compiler.plan.own_numbers import own_numbers

    return own_numbers(computation, plan.replicas, plan.partitions)


def _lowering(instruction: Instruction, opcode: str) -> Lowering:
    lowering = LOWERINGS.get(opcode or instruction.opcode)
    if lowering is None:
        raise CodegenError(
            "E0470",
            f"instruction {instruction.name!r}: {instruction.opcode!r} has no lowering to tiles",
            hint="evaluate the module with `hloipu eval`, or rewrite it without this op",
        )
    return lowering


def _element(
    computation: Computation, instruction: Instruction, known: Sequence[Sequence[Value]]
) -> Sequence[Value]:
    operand = instruction.operands[0]
    shape = computation.instructions[operand].shape
    if not isinstance(shape, TupleShape):
        return known[operand]
    return known[operand][leaf_range(shape, instruction.attributes.integer("index"))]


def lower(
    module: Module,
    plan: Plan,
    machine: Machine,
    tuning: Tuning = DEFAULT_TUNING,
    plans: list[Record] | None = None,
) -> Program:
    """Return the program of a module's entry computation, on the IPUs that its plan names.

    Parameters come in by streams `parameter.N`, results go out by `result.N`; N counts arrays.
    `plans` takes the records of what planners chose.
    """
    builder = Builder(machine, tuning)
    builder.plans = plans
    builder.ipus = plan.shards
    builder.go_by(plan)
    entry = module.entry
    builder.code_bytes = code_bytes_of(module, plan, whole=tuning.counts_called_code)
    late = _is_scarce(builder, module, plan)
    tunings = _product_tunings(builder, module, plan, late=late)
    builder.layout = layout_of(module, plan, machine, builder.tuning_here, tunings=tunings)
    if plans is not None:
        from hloipu_compiler.layout.reasons import placed_values

        plans += placed_values(module, builder.layout, builder.machine)
    arguments: list[list[Value]] = []
    parameters: list[Port] = []
    arrivals = Arrivals(builder)
    waiting: list[tuple[str, TileTensor, int]] = []
    uses = first_uses(entry)
    for position in entry.parameters:
        instruction = entry.instructions[position]
        builder.origin = instruction.name
        leaves: list[Value] = []
        for number, shape in enumerate(leaves_of(instruction.shape)):
            builder.ipu = plan.held_ipus.get((entry.name, instruction.name, number), 0)
            kind, sizes = shape.element_type.name, shape.dimensions
            if kind == "token":
                leaves.append(Token())
                continue
            born = builder.layout.born(len(parameters))
            stream = f"parameter.{len(parameters)}"
            parameters.append(Port(stream, kind, sizes))
            tensor = streamed_in(builder, stream, kind, sizes, born, late=late)
            leaves.append(tensor)
            if late:
                waiting.append((stream, tensor, uses.get(position, len(entry.instructions))))
        arguments.append(leaves)
    arrivals.wait(waiting)
    builder.ipu = 0
    owned = frozenset(leaf for leaves in arguments for leaf in leaves)
    results = lower_instructions(builder, module, plan, entry, arguments, owned, arrivals=arrivals)
    arrivals.finish()
    ports: list[Port] = []
    for number, leaf in enumerate(results):
        builder.origin = entry.instructions[entry.root].name
        if isinstance(leaf, Token):
            continue
        tensor = (
            leaf
            if isinstance(leaf, TileTensor)
            else builder.tile_tensor(builder.brought_here(leaf))
        )
        stream = f"result.{number}"
        builder.emit(s.Sync())
        builder.emit(s.StreamOut(stream, tensor.variable, tensor.value))
        ports.append(Port(stream, tensor.element_type, tensor.shape))
    queues = tuple(builder.queues.values())
    require_unique((*parameters, *ports), queues)
    return Program(
        module.name,
        machine.name,
        builder.ipus,
        tuple(builder.variables),
        tuple(builder.values),
        builder.constants,
        s.Sequence(tuple(builder.scope.steps)),
        builder.function_bodies,
        tuple(parameters),
        tuple(ports),
        tuple(builder.elided),
        queues=queues,
    )


def streamed_in(
    builder: Builder,
    stream: str,
    kind: str,
    sizes: tuple[int, ...],
    mapping: TileMapping | None = None,
    *,
    late: bool = False,
) -> TileTensor:
    """Write the step that takes an array from the host into a variable of its own.

    `late`: the step is written later.
    """
    mapping = mapping or builder.default_mapping(kind, sizes)
    variable = builder.variable(kind, sizes, mapping, Role.PARAMETER)
    value = builder.value(kind, sizes)
    if not late:
        builder.emit(s.Sync())
        builder.emit(s.StreamIn(stream, variable, value))
    return TileTensor(value, variable, kind, sizes)
