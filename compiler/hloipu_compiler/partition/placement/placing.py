"""The IPU of every op and of all state of a module: as placed, or as users and operands have it.

Graphcore's order (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/passes/sharding_pass.cc): what says nothing takes the IPU
of its users, then of its operands, and where nothing is left that knows, the one with most users
takes the first IPU. Of several operands' IPUs that one is taken to which fewest bytes have to be
brought, counting what forward ops have brought there already: so gradients, which no annotated op
reads, follow the ops that they are gradients of.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.placement.cells import Cell, OpKey, cells_of
from hloipu_compiler.partition.placement.handing_down import said
from hloipu_compiler.partition.placement.request import ShardingError
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
                hint="leave --stages, --cut-at and --device-map out, and micro-batches run on the "
                "IPUs that ops are annotated with; or annotate ops with ipu_stage in place of "
                "ipu_shard",
            )


_MOST_ROUNDS = 64
"""Of taking from users and operands by turns; each goes through whole chains."""


def propagated(cells: Sequence[Cell]) -> list[int]:
    """Return the IPU of every cell."""
    propagation = _Propagation(cells)
    for _ in range(_MOST_ROUNDS):
        if not (propagation.from_users() or propagation.from_operands() or propagation.first_one()):
            break
    return [ipu or 0 for ipu in propagation.ipu]


class _Propagation:
    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self.ipu = [cell.said for cell in cells]
        self.at_hand: list[set[int]] = [set() for _ in cells]
        """Where a value is, or is brought for its users."""
        for number, ipu in enumerate(self.ipu):
            if ipu is not None:
                self._note(number, ipu)

    def from_users(self) -> bool:
        """Place what has users that are placed, last first; return whether there was any."""
        any_placed = False
        for number in range(len(self.cells) - 1, -1, -1):
            if self.ipu[number] is None:
                there = [
                    ipu
                    for user in self.cells[number].users
                    if (ipu := self.ipu[user]) is not None and user >= number
                ]
                if there:
                    self._place(number, min(set(there), key=lambda n: (-there.count(n), n)))
                    any_placed = True
        return any_placed

    def from_operands(self) -> bool:
        """Place what has operands that are placed, first first; return whether there was any."""
        any_placed = False
        for number, cell in enumerate(self.cells):
            if self.ipu[number] is None:
                ipu = self._nearest(cell)
                if ipu is not None:
                    self._place(number, ipu)
                    any_placed = True
        return any_placed

    def first_one(self) -> bool:
        """Place the cell with most users on the first IPU; return whether there was one."""
        left = [n for n, ipu in enumerate(self.ipu) if ipu is None]
        if left:
            self._place(max(left, key=lambda n: (len(self.cells[n].users), -n)), 0)
        return bool(left)

    def _nearest(self, cell: Cell) -> int | None:
        operands = [o for o in cell.operands if self.ipu[o] is not None]
        if not operands:
            return None
        ipus = list(dict.fromkeys(self.ipu[o] for o in operands))
        ipus += sorted(set().union(*(self.at_hand[o] for o in operands)) - set(ipus))
        best, least = None, -1
        for ipu in ipus:
            brought = sum(self.cells[o].bytes for o in operands if ipu not in self.at_hand[o])
            if best is None or brought < least:
                best, least = ipu, brought
        return best

    def _place(self, number: int, ipu: int) -> None:
        self.ipu[number] = ipu
        self._note(number, ipu)

    def _note(self, number: int, ipu: int) -> None:
        self.at_hand[number].add(ipu)
        for operand in self.cells[number].operands:
            self.at_hand[operand].add(ipu)
