"""Lowers computations instruction by instruction, and the entry with its streams."""

from collections.abc import Sequence

from hloipu_compiler.analysis.order import effectful_computations, live_positions
from hloipu_compiler.codegen.builder import Builder
from hloipu_compiler.codegen.dying import Dying
from hloipu_compiler.codegen.errors import CodegenError
from hloipu_compiler.codegen.layout_walk import layout_of
from hloipu_compiler.codegen.leaves import Held, Leaf, Token
from hloipu_compiler.codegen.live_bytes import live_bytes
from hloipu_compiler.codegen.planned import Record
from hloipu_compiler.codegen.site import LOWERINGS, Lowering, Site, leaf_range, leaves_of
from hloipu_compiler.codegen.stream_names import require_unique
from hloipu_compiler.codegen.tuning import DEFAULT_TUNING, Tuning
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Mapping
from hloipu_runtime.program.program import Port, Program, Role


def lower_computation(
    site: Site,
    computation: Computation,
    arguments: Sequence[Sequence[Leaf]],
    owned: frozenset[Leaf],
) -> list[Leaf]:
    """Write a called computation's steps into the innermost block; return its results.

    `owned`: leaves among the arguments that die here, after their last use.
    """
    return lower_instructions(site.builder, site.module, site.plan, computation, arguments, owned)


def lower_instructions(
    builder: Builder,
    module: Module,
    plan: Plan,
    computation: Computation,
    arguments: Sequence[Sequence[Leaf]],
    owned: frozenset[Leaf],
) -> list[Leaf]:
    """Write a computation's steps into the innermost block; return the leaves of its result."""
    live = live_positions(computation, effectful_computations(module))
    given = [leaf for leaves in arguments for leaf in leaves]
    dying = Dying(computation, [leaf for leaf in given if leaf not in owned])
    known: list[Sequence[Leaf]] = []
    alive, outside = live_bytes(computation), builder.alive_bytes
    builder.instructions = max(builder.instructions, len(module.entry.instructions))
    for position, x in enumerate(computation.instructions):
        if not live[position]:
            known.append(())
        elif x.parameter_number >= 0:
            known.append(arguments[x.parameter_number])
        elif x.opcode == "tuple":
            known.append([leaf for i in x.operands for leaf in known[i]])
        elif x.opcode == "get-tuple-element":
            known.append(_element(computation, x, known))
        elif x.opcode == "after-all":
            known.append([Token()])
        else:
            builder.origin = x.name
            builder.alive_bytes = outside + alive[position]
            builder.wishes = builder.layout.demands.get((computation.name, x.name, 0), ())
            operands = tuple(tuple(known[i]) for i in x.operands)
            dies = tuple(dying.dies_at(position, leaves) for leaves in operands)
            site = Site(builder, module, plan, computation, x, operands, dies)
            known.append(_lowering(x)(site))
        dying.hold(position, known[position])
    builder.alive_bytes = outside
    return list(known[computation.root])


def _lowering(x: Instruction) -> Lowering:
    found = LOWERINGS.get(x.opcode)
    if found is None:
        raise CodegenError(
            "E0470",
            f"instruction {x.name!r}: {x.opcode!r} has no lowering to tiles",
            hint="evaluate the module with `hloipu eval`, or rewrite it without this op",
        )
    return found


def _element(
    computation: Computation, x: Instruction, known: Sequence[Sequence[Leaf]]
) -> Sequence[Leaf]:
    operand = x.operands[0]
    shape = computation.instructions[operand].shape
    if not isinstance(shape, TupleShape):
        return known[operand]
    return known[operand][leaf_range(shape, x.attributes.integer("index"))]


def lower(
    module: Module,
    plan: Plan,
    machine: Machine,
    tuning: Tuning = DEFAULT_TUNING,
    plans: list[Record] | None = None,
) -> Program:
    """Return the program of a module's entry computation, for one IPU.

    Parameters come in by streams `parameter.N`, results go out by `result.N`; N counts arrays.
    `plans` takes the records of what planners chose.
    """
    builder = Builder(machine, tuning)
    builder.plans = plans
    entry = module.entry
    builder.layout = layout_of(module, plan, machine, tuning)
    arguments: list[list[Leaf]] = []
    parameters: list[Port] = []
    for position in entry.parameters:
        x = entry.instructions[position]
        builder.origin = x.name
        leaves: list[Leaf] = []
        for number, shape in enumerate(leaves_of(x.shape)):
            kind, sizes = shape.element_type.name, shape.dimensions
            if kind == "token":
                leaves.append(Token())
                continue
            stream = f"parameter.{len(parameters)}"
            parameters.append(Port(stream, kind, sizes))
            born = builder.layout.homes.get((entry.name, x.name, number))
            mapping = born and born.mapping
            leaves.append(streamed_in(builder, stream, kind, sizes, mapping))
        arguments.append(leaves)
    owned = frozenset(leaf for leaves in arguments for leaf in leaves)
    results = lower_instructions(builder, module, plan, entry, arguments, owned)
    ports: list[Port] = []
    for number, leaf in enumerate(results):
        builder.origin = entry.instructions[entry.root].name
        if isinstance(leaf, Token):
            continue
        held = builder.held(leaf)
        stream = f"result.{number}"
        builder.emit(s.Sync())
        builder.emit(s.StreamOut(stream, held.variable, held.value))
        ports.append(Port(stream, held.element_type, held.shape))
    queues = tuple(builder.queues.values())
    require_unique((*parameters, *ports), queues)
    return Program(
        module.name,
        machine.name,
        1,
        tuple(builder.variables),
        tuple(builder.values),
        builder.constants,
        s.Sequence(tuple(builder.scope.steps)),
        {},
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
    mapping: Mapping | None = None,
) -> Held:
    """Write the step that takes an array from the host into a variable of its own."""
    mapping = mapping or builder.home(kind, sizes)
    variable = builder.variable(kind, sizes, mapping, Role.PARAMETER)
    value = builder.value(kind, sizes)
    builder.emit(s.Sync())
    builder.emit(s.StreamIn(stream, variable, value))
    return Held(value, variable, kind, sizes)
