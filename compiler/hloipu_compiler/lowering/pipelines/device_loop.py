"""Lowers the entry as a device loop: resident state, queues, and the step in a loop.

State lies in variables of its own from run to run, and what no queue feeds is loaded with the
program, as constants are. With a loop, each iteration takes the next elements of the feeds before
it computes, hands over what outfeeds take, and brings the new state home.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import leaves_of
from hloipu_compiler.layout.reasons import placed_values
from hloipu_compiler.layout.walk import layout_of
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.io_tiles import (
    IoTiles,
    brought_out,
    io_tiles_of,
    taken_in,
    without_them,
)
from hloipu_compiler.lowering.core.lowering import code_bytes_of, lower_instructions, streamed_in
from hloipu_compiler.lowering.core.stream_names import require_unique
from hloipu_compiler.lowering.core.values import TileTensor, Token, Value
from hloipu_compiler.lowering.ops.randomness import draws, state_in
from hloipu_compiler.lowering.pipelines.results import (
    LAST,
    Kept,
    Sum,
    added,
    begun,
    carried_on,
    finished,
)
from hloipu_compiler.lowering.regions.control import copied_to_storage
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.wrapping import FeedBinding, Wrapping
from hloipu_compiler.planners.planned import Record
from hloipu_compiler.planners.tuning import DEFAULT_TUNING, Tuning
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.loading import not_given
from hloipu_runtime.program.program import Port, Program, Queue, Role, StatePort
from hloipu_runtime.program.steps import ValueId
from hloipu_runtime.program.uses import used

RANDOM_STATE = "random state"
"""Name of the state that random ops draw from which have none of their own."""
_LOOP = "loop"
_NOWHERE = -1


@dataclass
class _Step:
    """A step under construction."""

    builder: Builder
    entry: Computation
    arrays: list[tuple[str, tuple[int, ...]]]
    """Of the parameters, flattened."""
    ipus: list[int]
    """Of the parameters, flattened."""
    apart: IoTiles | None = None
    """Tiles that the queues of the loop have their buffers on."""
    parameters: list[Port] = field(default_factory=list)
    results: list[Port] = field(default_factory=list)
    loaded: list[ValueId] = field(default_factory=list)
    """Of the parameters, where the program stays on the device."""
    queues: list[Queue] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)


def lower_wrapped(
    module: Module,
    plan: Plan,
    machine: Machine,
    wrapping: Wrapping,
    tuning: Tuning = DEFAULT_TUNING,
    plans: list[Record] | None = None,
) -> Program:
    """Return the program of a module's entry as a step on the device, on the plan's IPUs.

    Feeds take from streams `NAME.K`, outfeeds hand over to them, K counting their arrays. Raises
    UsageError E3152 where an infeed or outfeed op has the name of a queue.
    """
    apart = io_tiles_of(machine, wrapping.io_tiles) if wrapping.io_tiles else None
    builder = Builder(without_them(machine, apart) if apart else machine, tuning)
    builder.plans = plans
    builder.ipus = plan.shards
    builder.go_by(plan)
    entry = module.entry
    step = _Step(builder, entry, _arrays(entry), _ipus(entry, plan), apart)
    follows = {pair.parameter: pair.result for pair in wrapping.state}
    builder.code_bytes = code_bytes_of(module, plan, whole=tuning.counts_called_code)
    builder.layout = layout_of(module, plan, builder.machine, builder.tuning_here, follows)
    if plans is not None:
        plans += placed_values(module, builder.layout, builder.machine)
    kept = _kept(step, module, wrapping)
    builder.is_resident = bool(kept or wrapping.feeds or wrapping.outfeeds)
    known: dict[int, Value] = {item.parameter: item.in_loop for item in kept if item.parameter >= 0}
    for number in wrapping.constants:
        known[number] = _constant(step, number)
    for number in wrapping.inputs:
        known[number] = _streamed_parameter(step, number)
    repeats = wrapping.loop is not None
    builder.iterations = wrapping.loop or 1
    _begin_sums(step, wrapping, plan)
    carried_arrays: list[Kept | Sum] = [*kept, *step.sums]
    with builder.block(repeats=True) if repeats else nullcontext(builder.scope) as scope:
        scope.owned.update(item.storage.variable for item in carried_arrays)
        for feed in wrapping.feeds:
            known.update(_fed(step, feed))
        following = _computed(step, module, plan, wrapping, known, kept)
    final = following
    if wrapping.loop is not None:
        carried, final = carried_on(builder, carried_arrays, following)
        body = s.Sequence(tuple(scope.steps))
        builder.emit(s.Repeat(wrapping.loop, body, carried, _LOOP))
        _hand_over_sums(step, final[len(kept) :], wrapping.loop)
    ports = tuple(
        StatePort(x.name, x.storage.variable, x.storage.value, value, x.parameter, x.result)
        for x, value in zip(kept, final[: len(kept)], strict=True)
    )
    program = Program(
        module.name,
        machine.name,
        builder.ipus,
        tuple(builder.variables),
        tuple(builder.values),
        builder.constants,
        s.Sequence(tuple(builder.scope.steps)),
        builder.function_bodies,
        tuple(step.parameters),
        tuple(step.results),
        tuple(builder.elided),
        ports,
        _all_queues(step),
        wrapping.loop or 1,
        tuple(step.loaded),
    )
    return without_spare_constants(program)


def _arrays(entry: Computation) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (shape.element_type.name, shape.dimensions)
        for position in entry.parameters
        for shape in leaves_of(entry.instructions[position].shape)
        if shape.element_type.name != "token"
    ]


def _ipus(entry: Computation, plan: Plan) -> list[int]:
    return [
        plan.held_ipus.get((entry.name, op.name, number), 0)
        for op in (entry.instructions[position] for position in entry.parameters)
        for number, shape in enumerate(leaves_of(op.shape))
        if shape.element_type.name != "token"
    ]


def _kept(step: _Step, module: Module, wrapping: Wrapping) -> list[Kept]:
    """Return variables for all state, that of random ops among it if the entry draws."""
    repeats = wrapping.loop is not None
    builder, kept = step.builder, []
    for pair in wrapping.state:
        kind, builder.ipu = step.arrays[pair.parameter], step.ipus[pair.parameter]
        kept.append(_keep(builder, pair.name, kind, repeats, pair.parameter, pair.result))
    builder.ipu = 0
    if draws(module, (step.entry.name,)):
        kept.append(_keep(builder, RANDOM_STATE, ("u64", (3,)), repeats, _NOWHERE, _NOWHERE))
    return kept


def _keep(
    builder: Builder,
    name: str,
    kind: tuple[str, tuple[int, ...]],
    repeats: bool,
    parameter: int,
    result: int,
) -> Kept:
    builder.origin = name
    initial = builder.value(*kind)
    in_loop = builder.loop_value(TileTensor(initial, _NOWHERE, *kind)).value if repeats else initial
    variable = builder.variable(
        *kind, builder.layout.born(parameter) or builder.default_mapping(*kind), Role.STATE
    )
    storage = TileTensor(initial, variable, *kind)
    return Kept(name, storage, replace(storage, value=in_loop), parameter, result)


def _constant(step: _Step, number: int) -> Value:
    """Return a parameter that no queue feeds: loaded, where the program stays on the device."""
    if not step.builder.is_resident:
        return _streamed_parameter(step, number)
    stream = step.builder.origin = f"parameter.{number}"
    step.parameters.append(Port(stream, *step.arrays[number]))
    step.builder.ipu = step.ipus[number]
    constant = step.builder.constant(not_given(*step.arrays[number]), step.arrays[number][0])
    step.loaded.append(constant.value)
    return constant


def _streamed_parameter(step: _Step, number: int) -> Value:
    """Write the step that takes in a parameter once in each call."""
    stream = step.builder.origin = f"parameter.{number}"
    step.parameters.append(Port(stream, *step.arrays[number]))
    step.builder.ipu = step.ipus[number]
    born = step.builder.layout.born(number)
    return streamed_in(step.builder, stream, *step.arrays[number], born)


def _fed(step: _Step, feed: FeedBinding) -> dict[int, Value]:
    """Take the next element of a feed; return the parameters that it makes."""
    ports = tuple(
        Port(f"{feed.name}.{k}", *step.arrays[number]) for k, number in enumerate(feed.places)
    )
    step.queues.append(Queue(feed.name, True, ports, feed.places, names=feed.names))
    step.builder.origin = feed.name
    elements: dict[int, Value] = {}
    here = step.builder.ipu
    for ipu in dict.fromkeys(step.ipus[number] for number in feed.places):
        step.builder.ipu = ipu
        mine = [
            (n, port) for n, port in zip(feed.places, ports, strict=True) if step.ipus[n] == ipu
        ]
        born = [step.builder.layout.born(number) for number, _ in mine]
        arriving = [port for _, port in mine]
        if step.apart is not None:
            taken: Sequence[TileTensor] = taken_in(step.builder, step.apart, arriving, born)
        else:
            taken = [
                streamed_in(step.builder, port.stream, port.element_type, port.shape, mapping)
                for port, mapping in zip(arriving, born, strict=True)
            ]
        elements.update(zip((number for number, _ in mine), taken, strict=True))
    step.builder.ipu = here
    return elements


def _computed(
    step: _Step,
    module: Module,
    plan: Plan,
    wrapping: Wrapping,
    known: dict[int, Value],
    kept: Sequence[Kept],
) -> list[ValueId]:
    """Write the step itself and all that it hands over; return the state after it, at home."""
    builder = step.builder
    lasting = set(wrapping.constants) if builder.is_resident else set[int]()
    if wrapping.loop is not None:
        lasting.update(wrapping.constants, wrapping.inputs)
    owned = frozenset(leaf for number, leaf in known.items() if number not in lasting)
    if kept and kept[-1].name == RANDOM_STATE and kept[-1].parameter < 0:
        builder.random_state = kept[-1].in_loop
    destinations = {item.result: item.in_loop for item in kept if item.parameter >= 0}
    results = lower_instructions(
        builder, module, plan, step.entry, _arguments(step.entry, known), owned, destinations
    )
    builder.origin = step.entry.instructions[step.entry.root].name
    leaves = [None if isinstance(leaf, Token) else builder.tile_tensor(leaf) for leaf in results]
    for outfeed in wrapping.outfeeds:
        if not outfeed.reduction:
            step.queues.append(_handed_over(step, outfeed, leaves))
    for number in wrapping.results if wrapping.loop is None else ():
        step.results.append(_streamed_out(builder, f"result.{number}", leaves[number]))
    pairs = []
    for item in kept:
        leaf = leaves[item.result] if item.parameter >= 0 else state_in(builder)
        if leaf is None:
            raise TypeError(f"result {item.result} is a token")
        pairs.append((leaf, item.in_loop))
    for total in step.sums:
        leaf = leaves[total.place]
        if leaf is None:
            raise TypeError(f"result {total.place} is a token")
        builder.origin = total.outfeed.name
        builder.ipu = builder.variables[total.storage.variable].ipu
        pairs.append((added(builder, total, leaf), total.in_loop))
    builder.origin, builder.ipu = _LOOP, 0
    return copied_to_storage(builder, pairs)


def _begin_sums(step: _Step, wrapping: Wrapping, plan: Plan) -> None:
    """Write zeros for what outfeeds add up, and last results, each where its arrays are made."""
    entry = step.entry
    root = entry.instructions[entry.root]
    shapes = [(shape.element_type.name, shape.dimensions) for shape in leaves_of(root.shape)]
    makers = [entry.instructions[i] for i in root.operands] if root.opcode == "tuple" else []
    ipus = [
        plan.ipus.get((entry.name, op.name), 0)
        for op in makers or [root]
        for _ in leaves_of(op.shape)
    ]
    final = [FeedBinding(f"result.{n}", (n,), LAST) for n in wrapping.results if wrapping.loop]
    for outfeed in (*wrapping.outfeeds, *final):
        step.builder.origin = outfeed.name
        for n in outfeed.places if outfeed.reduction else ():
            step.builder.ipu = ipus[n]
            step.sums.append(begun(step.builder, outfeed, n, *shapes[n]))
    step.builder.ipu = 0


def _hand_over_sums(step: _Step, totals: Sequence[ValueId], iterations: int) -> None:
    """Write what becomes of the sums, and of the last results, after the loop."""
    ports: dict[FeedBinding, list[Port]] = {}
    for item, value in zip(step.sums, totals, strict=True):
        step.builder.origin = item.outfeed.name
        if item.outfeed.reduction == LAST:
            step.builder.ipu = step.builder.variables[item.storage.variable].ipu
            last = replace(item.storage, value=value)
            step.results.append(_streamed_out(step.builder, item.outfeed.name, last))
            continue
        outfeed_ports = ports.setdefault(item.outfeed, [])
        step.builder.ipu = step.builder.variables[item.storage.variable].ipu
        leaf = finished(step.builder, item, replace(item.storage, value=value), iterations)
        outfeed_ports.append(
            _streamed_out(step.builder, f"{item.outfeed.name}.{len(outfeed_ports)}", leaf)
        )
    for outfeed, streams in ports.items():
        queue = Queue(outfeed.name, False, tuple(streams), outfeed.places, outfeed.reduction,
                      names=outfeed.names)  # fmt: skip
        step.queues.append(queue)


def _arguments(entry: Computation, known: dict[int, Value]) -> list[list[Value]]:
    """Return what each parameter is, its arrays in order."""
    arguments: list[list[Value]] = []
    number = 0
    for position in entry.parameters:
        leaves: list[Value] = []
        for shape in leaves_of(entry.instructions[position].shape):
            if shape.element_type.name == "token":
                leaves.append(Token())
                continue
            leaves.append(known[number])
            number += 1
        arguments.append(leaves)
    return arguments


def _handed_over(step: _Step, outfeed: FeedBinding, leaves: Sequence[TileTensor | None]) -> Queue:
    ports = tuple(
        _streamed_out(step.builder, f"{outfeed.name}.{k}", leaves[number], step.apart)
        for k, number in enumerate(outfeed.places)
    )
    return Queue(outfeed.name, False, ports, outfeed.places, mode=outfeed.mode, names=outfeed.names)


def _streamed_out(
    builder: Builder, stream: str, leaf: TileTensor | None, apart: IoTiles | None = None
) -> Port:
    if leaf is None:
        raise TypeError(f"{stream} is a token")
    port = Port(stream, leaf.element_type, leaf.shape)
    builder.ipu = builder.variables[leaf.variable].ipu
    if apart is not None:
        leaf = brought_out(builder, apart, port, leaf)
    builder.emit(s.Sync())
    builder.emit(s.StreamOut(stream, leaf.variable, leaf.value))
    return port


def _all_queues(step: _Step) -> tuple[Queue, ...]:
    queues = (*step.queues, *step.builder.queues.values())
    require_unique((*step.parameters, *step.results), queues)
    return queues


def without_spare_constants(program: Program) -> Program:
    """Return a program that loads no constant that nothing reads; its variable takes no memory.

    A parameter that is loaded keeps one variable, read or not.
    """
    read = used(program.body, program).union(
        *(used(x, program) for x in program.functions.values())
    )
    kept_values = {value for number, (value, _) in program.constants.items() if number in read}
    constants = {}
    for number, (value, array) in program.constants.items():
        if number in read or (value in program.loaded and value not in kept_values):
            constants[number] = (value, array)
            kept_values.add(value)
    variables = list(program.variables)
    for number in program.constants.keys() - constants.keys():
        variables[number] = replace(variables[number], role=Role.TEMPORARY)
    return replace(program, constants=constants, variables=tuple(variables))
