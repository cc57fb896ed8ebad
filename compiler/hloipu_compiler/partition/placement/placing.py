"""The IPU of every op and of all state of a module."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.placement.cells import OpKey, cells_of
from hloipu_compiler.partition.placement.propagation import propagated
from hloipu_compiler.partition.placement.request import ShardingError
from hloipu_compiler.partition.placement.statements import said
from hloipu_compiler.partition.stages.update_places import placed as update_places
from hloipu_compiler.plan.pipelining import Pipelining
from hloipu_compiler.plan.plan import Plan


def placed(
    module: Module, plan: Plan, known: Mapping[OpKey, int], state: Sequence[tuple[int, int]] = ()
) -> Plan:
    """Return the plan with the IPUs of the ops of a module, flat or cut into calls.

    `known` has those of ops that say nothing themselves, such as passes make of others; what the
    plan has of places that hold state stands. `state`: numbers of parameters and results, tuples
    flattened, that are one array from run to run.
    The plan has no IPUs where all are on the first.
    """
    cells = cells_of(module, known, plan.held_ipus, state, plan.partitions)
    ipus = propagated(cells.cells)
    if not any(ipus):
        return replace(plan, ipus={}, held_ipus={})
    ops: dict[tuple[str, str], int] = {}
    ipu_by_place: dict[tuple[str, str, int], int] = {}
    for cell, ipu in zip(cells.cells, ipus, strict=True):
        match cell.key:
            case (computation, name, leaf):
                ipu_by_place[computation, name, leaf] = ipu
            case (computation, name):
                ops[computation, name] = ipu
    for key, users in cells.constants:
        if users:
            ops[key] = ipus[users[0]]
    ipu_by_place.update((key, ipus[cell]) for key, cell in cells.results)
    return replace(plan, ipus=ops, held_ipus=ipu_by_place)


def placed_cut(
    module: Module, plan: Plan, pipelining: Pipelining, state: Sequence[tuple[int, int]]
) -> tuple[Plan, Pipelining]:
    """Return the IPUs of the ops of a step that was cut into calls, and of its micro-batches.

    Of stages the IPUs stand. Raises ShardingError E0553 where ops of these state others.
    """
    if pipelining.schedule.stages > 1 or pipelining.ipus != ((0,),):
        require_agreement(module, pipelining, plan.partitions)
        return plan, pipelining
    plan = placed(module, plan, {}, state)
    return plan, spread(module, plan, pipelining) if plan.ipus else pipelining


def spread(module: Module, plan: Plan, pipelining: Pipelining) -> Pipelining:
    """Return how a step is cut whose micro-batches run on all IPUs that its plan names.

    `module`: cut into calls, as the plan knows it. Its parameters lie, and its gradients are added
    up, where the plan has them.
    """
    entry, ipu_by_place = module.entry, plan.held_ipus
    ipus = tuple(range(plan.shards))
    names = [entry.instructions[position].name for position in entry.parameters]
    return replace(
        pipelining,
        ipus=(ipus,),
        positions=tuple(position._replace(ipus=ipus) for position in pipelining.positions),
        accumulations=tuple(
            accumulation._replace(
                ipu=ipu_by_place.get((entry.name, accumulation.call, accumulation.element), 0)
            )
            for accumulation in pipelining.accumulations
        ),
        homes={
            number: ipu_by_place.get((entry.name, name, 0), 0) for number, name in enumerate(names)
        },
    )


def require_agreement(module: Module, pipelining: Pipelining, partitions: int) -> None:
    """Raise ShardingError E0553 where an op of a step in stages states another IPU than theirs.

    `module`: cut into calls. What is computed at several stages has to be at the one that it states
    as well.
    """
    outside = update_places(module, pipelining)
    stated: dict[str, tuple[set[int], set[int]]] = {}
    waiting = [
        (module.entry[part.call].attributes.called[0], part.ipu) for part in pipelining.parts
    ]
    waiting += [(name, -1) for name in dict.fromkeys(name for name, _ in outside)]
    for name, ipu in waiting:
        for instruction in module.computation[name].instructions:
            here = outside.get((name, instruction.name), 0) if ipu < 0 else ipu
            waiting += [(inner, here) for inner in instruction.attributes.called]
            wanted, places = stated.setdefault(instruction.name, (set(), set()))
            wanted.update(ipu for ipu in said(instruction, partitions) if ipu is not None)
            places.add(here)
    for op, (wanted, places) in stated.items():
        if wanted - places:
            raise ShardingError(
                "E0553",
                f"{op!r} is annotated with IPU {min(wanted - places)} (ipu_shard, maximal device), "
                f"and the stage that has it is on IPU {min(places)}",
                hint="leave --stages and --device-map out, and micro-batches run on the IPUs that "
                "ops are annotated with; or annotate ops with ipu_stage in place of ipu_shard",
            )
