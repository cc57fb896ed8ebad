"""A step split as a reference runs it: gradients of a micro-batch, and one update.

The cut is made anew, into as few stages as can be and with nothing offloaded or in parts, and only
as a module: no codegen takes part. Both parts are HLO of their own, so that XLA:CPU runs them.
What each accumulates is the part that a program shares with it, and nothing else; that the two
parts together are the plain step is compared as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hloipu.compile_request import plugins
from hloipu.options.table import Options
from hloipu.pipelining import pipeline_request
from hloipu.wrapping import wrapping_request
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.lowering.pipelines.entry_calls import EntryCalls
from hloipu_compiler.partition.scans.staged_loops import step_apart
from hloipu_compiler.partition.stages.cutting import annotated
from hloipu_compiler.partition.stages.pipelining import cutting_of, pipelined, uncut_step
from hloipu_compiler.passes.eliminate_dead_code import dead_code_eliminated
from hloipu_compiler.passes.pipelines import before_cut
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.flat_arrays import with_flat_parameters, with_flat_results
from hloipu_compiler.plan.participants import meets_others
from hloipu_compiler.plan.pipelining import OFF, Accumulation, PipelineRequest, Pipelining
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.roles import required_wrapping, with_roles, wrapping_of
from hloipu_compiler.plan.wrapping import Wrapping, looped
from hloipu_runtime.errors import UnsupportedError, UsageError
from hloipu_runtime.plain_text import printable


@dataclass(frozen=True)
class Parts:
    """The two parts of a step whose gradients are added up; both take all of its parameters."""

    micro_batch: Module
    """Gives the gradients, the new state of `carried`, and the results of `early`."""
    update: Module
    """Takes the gradients after the parameters; gives the new state of `updated`, and `late`."""
    accumulations: tuple[Accumulation, ...]
    gradient_types: tuple[str, ...]
    carried: tuple[int, ...]
    """Parameters that go from micro-batch to micro-batch."""
    updated: tuple[int, ...]
    """Parameters that each update makes anew."""
    early: tuple[int, ...]
    """Numbers of the results that each micro-batch gives."""
    late: tuple[int, ...]


@dataclass(frozen=True)
class ReferenceStep:
    """A step as a reference runs it."""

    module: Module
    """The plain step."""
    wrapping: Wrapping
    micro_batches: int
    reduction: str
    parts: Parts | None
    """None: no gradients are combined; each micro-batch is the plain step on its element."""


def reference_step(module: Module, options: Options, replicas: int) -> ReferenceStep:
    """Return a step as a reference runs it, for a program with some number of replicas.

    Raises UnsupportedError E0466 for what no reference runs, and what compiling the step raises.
    """
    _refuse_unknown(module)
    wrapping, request = wrapping_request(options), pipeline_request(options)
    if not (request.asks or request.shard_optimizer or replicas > 1):
        wrapped = wrapping_of(module, wrapping)
        if wrapped is None:
            raise UsageError("E3158", f"{module.name!r} keeps no state and has no queues")
        return ReferenceStep(module, wrapped, 1, request.reduction, None)
    wrapped = required_wrapping(module, looped(wrapping), feeds_rest=request.asks)
    request = _plain(with_roles(module, wrapping, request))
    cut, plan = _cut(module, wrapped, request, options)
    count = request.micro_batches
    adds_up = count * replicas > 1 or request.accumulator_type or request.accumulators
    if not plan.schedule.trains or not adds_up:
        return ReferenceStep(module, wrapped, count, request.reduction, None)
    return ReferenceStep(module, wrapped, count, request.reduction, _parts(cut, wrapped, plan))


def _refuse_unknown(module: Module) -> None:
    if meets_others(module):
        raise _no_reference(
            module,
            "its own collectives meet, and each participant of a loop has state of its own: the "
            "reference runs one participant at a time",
            "check the step without loop, stages and micro-batches, where all participants have "
            "the same arguments",
        )
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode in ("infeed", "outfeed", "send", "recv"):
                raise _no_reference(
                    module,
                    f"{instruction.opcode} {printable(instruction.name)!r} goes to a queue of the "
                    "host by itself",
                    "make its arrays parameters and results of the entry: --feed and --outfeed "
                    "give them queues",
                )


def _no_reference(module: Module, why: str, hint: str) -> UnsupportedError:
    message = f"there is no reference for the loop of {printable(module.name)!r}: {why}"
    return UnsupportedError("E0466", message, hint=hint)


def _plain(request: PipelineRequest) -> PipelineRequest:
    """Return a request for the same gradients and updates, cut as little as can be."""
    usual = PipelineRequest()
    return replace(
        request,
        stages=None,
        schedule=usual.schedule,
        batch_serialization=usual.batch_serialization,
        recompute=usual.recompute,
        device_map=(),
        cut_at=(),
        shard_optimizer=False,
        offload=OFF,
        offload_activations=False,
        offload_weights=False,
        offload_accumulators=False,
    )


def _cut(
    module: Module, wrapped: Wrapping, request: PipelineRequest, options: Options
) -> tuple[Module, Pipelining]:
    with plugins(options):
        flat = with_flat_parameters(module)
        flat, _ = run_passes(
            flat, Plan(), before_cut(options.passes or "default"), verify_each=False
        )
        flat = with_flat_results(flat)
    if not annotated(flat.entry):
        request = step_apart(flat, wrapped, request).request
    cutting = cutting_of(uncut_step(flat, wrapped, request), wrapped, request)
    return pipelined(cutting, wrapped, request)


def _parts(module: Module, wrapped: Wrapping, plan: Pipelining) -> Parts:
    calls = EntryCalls(module.entry)
    results = calls.result_positions
    inside = {part.call for part in plan.parts}
    early = [n for n, at in enumerate(results) if calls.maker(at) in inside]
    carried = dict(plan.per_micro_batch)
    updated = [pair for pair in wrapped.state if pair.parameter not in carried]
    state = {pair.result for pair in wrapped.state}
    given_early = tuple(n for n in early if n not in state)
    given_late = tuple(n for n in range(len(results)) if n not in {*early, *state})
    gradients = [_positions(module.entry, accumulation) for accumulation in plan.accumulations]
    micro_batch = _with_results(
        module,
        [
            *(places[0] for places in gradients),
            *(results[carried[p]] for p in sorted(carried)),
            *(results[n] for n in given_early),
        ],
        {},
    )
    count = len(module.entry.parameters)
    update = _with_results(
        module,
        [*(results[pair.result] for pair in updated), *(results[n] for n in given_late)],
        {at: count + n for n, places in enumerate(gradients) for at in places},
    )
    for instruction in update.entry.instructions:
        if instruction.name in inside:
            raise _no_reference(
                module,
                f"its update reads what {printable(instruction.name)!r} makes of a micro-batch, "
                "beside the "
                "gradients",
                "check it with --micro-batches 1",
            )
    return Parts(
        micro_batch,
        update,
        plan.accumulations,
        tuple(calls.tensor_of(accumulation)[0] for accumulation in plan.accumulations),
        tuple(sorted(carried)),
        tuple(pair.parameter for pair in updated),
        given_early,
        given_late,
    )


def _positions(entry: Computation, accumulation: Accumulation) -> list[int]:
    """Return where the entry takes a gradient out of its call."""
    call = entry.position[accumulation.call]
    return [
        n
        for n, instruction in enumerate(entry.instructions)
        if instruction.opcode == "get-tuple-element"
        and instruction.operands == (call,)
        and instruction.attributes.integer("index") == accumulation.element
    ]


def _with_results(
    module: Module, results: Sequence[int], number_by_position: Mapping[int, int]
) -> Module:
    """Return a module whose result is those values of the entry, flat.

    `number_by_position`: values that are parameters instead; of equal numbers, the first is.
    """
    entry = module.entry
    first: dict[int, int] = {}
    for position, number in sorted(number_by_position.items()):
        first.setdefault(number, position)

    def place(position: int) -> int:
        return first[number_by_position[position]] if position in number_by_position else position

    instructions: list[Instruction] = []
    for position, instruction in enumerate(entry.instructions):
        operands = tuple(map(place, instruction.operands))
        if first.get(number_by_position.get(position, -1)) == position:
            parameter = Instruction(
                instruction.name,
                "parameter",
                instruction.shape,
                parameter_number=number_by_position[position],
            )
            instructions.append(parameter)
        else:
            instructions.append(instruction._replace(operands=operands))
    shape = TupleShape(tuple(instructions[n].shape for n in results))
    instructions.append(Instruction("results.of.part", "tuple", shape, tuple(map(place, results))))
    new = replace(entry, instructions=tuple(instructions), root=len(instructions) - 1)
    computations = tuple(new if c is entry else c for c in module.computations)
    # The header repeats shapes and aliases of the whole.
    return dead_code_eliminated(
        replace(module, computations=computations, attributes=NO_ATTRIBUTES)
    )
