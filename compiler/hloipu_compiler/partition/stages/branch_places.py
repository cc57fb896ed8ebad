"""The IPU of each op in stages on several IPUs.

A position of the pipeline goes through levels: at each, its IPUs work beside each other, between
levels they hand over what others read. Levels follow from branches: what reads a value of another
branch, or what joins branches, is a level later. Within that, ops of a branch are as late or early
as can be, whichever keeps the IPUs busier side by side.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import byte_count
from hloipu_compiler.partition.stages.assignment import Stages
from hloipu_compiler.partition.stages.backward_places import bound_to_places
from hloipu_compiler.partition.stages.branches import Branching, is_element
from hloipu_compiler.partition.stages.cutting import work
from hloipu_compiler.partition.stages.independent_parts import JOIN
from hloipu_compiler.partition.training.reach import parameter_positions
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, FREE, Phases


class Spot(NamedTuple):
    """Where in its position of the pipeline an op runs."""

    level: int
    branch: int
    """`JOIN`: on the stage's first IPU, between branches."""


Spots = Mapping[int, Spot]
"""Of each forward and backward op of stages on several IPUs, by position."""


def needs_cycles(
    phases: Phases,
    stages: Stages,
    ipus: Sequence[tuple[int, ...]],
    marked: Mapping[int, int],
) -> bool:
    """Whether a stage has several IPUs, and no op of it says on which branch it is."""
    said = {stages[n] for n in marked if phases.phase[n] == FORWARD}
    return any(len(here) > 1 and stage not in said for stage, here in enumerate(ipus))


def spots_of(
    entry: Computation,
    phases: Phases,
    stages: Stages,
    ipus: Sequence[tuple[int, ...]],
    marked: Mapping[int, int],
    cycles: Sequence[float],
) -> Spots:
    """Return where the ops of stages run that have several IPUs.

    `ipus`: of each stage; `marked`: branches that ops are annotated with; `cycles`: of every op,
    where `needs_cycles`. Raises what `Branching.forward` raises.
    """
    spot_by_op: dict[int, Spot] = {}
    branching = Branching(entry, phases, stages, marked)
    for stage, here in enumerate(ipus):
        if len(here) == 1:
            continue
        members = [n for n in range(len(stages)) if stages[n] == stage]
        is_marked = any(n in marked and phases.phase[n] == FORWARD for n in members)
        branch = branching.forward(stage, len(here), () if is_marked else cycles)
        branch |= _Backward(branching, stage, branch).branches()
        if len(ipus) == 1:
            positions = [members]  # one call does both
        else:
            positions = [[n for n in members if phases.phase[n] == x] for x in (FORWARD, BACKWARD)]
        for position in positions:
            spot_by_op |= _levels(entry, position, branch)
    return spot_by_op


class _Backward:
    """The backward ops of one stage whose forward ops have their branches."""

    def __init__(self, branching: Branching, stage: int, forward: Mapping[int, int]) -> None:
        self.entry = branching.entry
        self.phases = branching.phases
        self.marked = branching.marked
        self.forward = forward
        self.members = [
            n
            for n, phase in enumerate(self.phases.phase)
            if phase == BACKWARD and branching.stages[n] == stage
        ]
        self.inside = frozenset(self.members)
        self.at_hand = self._at_hand()
        self.allowed: dict[int, frozenset[int] | None] = {}
        self.branch: dict[int, int] = {}

    def branches(self) -> dict[int, int]:
        """Return the branch of each backward op, or `JOIN`."""
        for n in self.members:
            self.branch[n] = self._begun(n)
        owner = self._gradient_owners()
        for n in reversed(self.members):
            if self.branch[n] == JOIN and n not in self.marked:
                self.branch[n] = self._wanted_by(n, owner.get(n))
        for n in self.members:
            if is_element(self.entry, self.inside, n):
                self.branch[n] = self.branch[self.entry.instructions[n].operands[0]]
        return self.branch

    def _at_hand(self) -> dict[int, frozenset[int]]:
        """Return the branches at which forward values of the stage, and large weights, are."""
        bound = bound_to_places(self.entry, self.phases)
        branches_by_value: dict[int, set[int]] = {n: {branch} for n, branch in self.forward.items()}
        for n, branch in self.forward.items():
            for i in self.entry.instructions[n].operands:
                is_weight = self.entry.instructions[i].parameter_number >= 0 and bound[i]
                if i in self.forward or is_weight:
                    branches_by_value.setdefault(i, set()).add(branch)
        return {n: frozenset(branches) for n, branches in branches_by_value.items()}

    def _begun(self, n: int) -> int:
        """Return where an op goes by what it reads."""
        operands = self.entry.instructions[n].operands
        if is_element(self.entry, self.inside, n):
            return self.branch[operands[0]]
        here = [self.at_hand[i] for i in operands if i in self.at_hand]
        allowed = self.allowed[n] = frozenset.intersection(*here) if here else None
        if n in self.marked:
            return self.marked[n]
        above = {self.branch[i] for i in operands if i in self.inside}
        from_one = above.pop() if len(above) == 1 else JOIN
        if allowed is None or from_one in allowed:
            return from_one
        return min(allowed) if len(allowed) == 1 else JOIN

    def _gradient_owners(self) -> dict[int, int]:
        """Return the branch that has the weight which a gradient is of."""
        places, empty = parameter_positions(self.entry), frozenset[int]()
        readers: dict[int, frozenset[int]] = {n: frozenset((b,)) for n, b in self.forward.items()}
        for position in range(len(self.entry.instructions) - 1, -1, -1):
            if self.phases.phase[position] in (FREE, ""):
                users = self.entry.users[position]
                readers[position] = empty.union(*(readers.get(u, empty) for u in users))
        branch_by_gradient = {}
        for gradient in self.phases.gradients:
            at = [i for number in gradient.parameters for i in places[number]]
            here = empty.union(*(readers.get(i, empty) for i in at))
            if len(here) == 1:
                (branch_by_gradient[gradient.position],) = here
        return branch_by_gradient

    def _wanted_by(self, n: int, owner: int | None) -> int:
        """Return the one branch that reads a joining op's result, if it had better run there.

        It had where it can, and where no more has to be sent there than if the op ran before; what
        only such ops read may go along.
        """
        entry, op = self.entry, self.entry.instructions[n]
        wanted = {self.branch[u] for u in entry.users[n] if u in self.inside}
        if owner is not None:
            wanted.add(owner)
        allowed = self.allowed.get(n)
        if len(wanted) != 1 or is_element(entry, self.inside, n):
            return JOIN
        (goal,) = wanted
        above = [i for i in dict.fromkeys(op.operands) if i in self.inside]
        if goal == JOIN or not (allowed is None or goal in allowed):
            return JOIN
        if any(self.branch[i] not in (JOIN, goal) for i in above):
            return JOIN
        sent = sum(
            byte_count(entry.instructions[i].shape) for i in above if not self._is_there(i, goal, n)
        )
        return goal if sent <= byte_count(op.shape) else JOIN

    def _is_there(self, position: int, goal: int, reader: int) -> bool:
        """Whether a value is made at a branch, is sent there in any case, or can be made there."""
        allowed = self.allowed.get(position)
        others = [u for u in self.entry.users[position] if u in self.inside and u != reader]
        is_sent = any(self.branch[u] == goal for u in others)
        follows = all(self.branch[u] == goal for u in others) and position not in self.marked
        return (
            self.branch[position] == goal
            or is_sent
            or (follows and (allowed is None or goal in allowed))
        )


def _levels(
    entry: Computation, members: Sequence[int], branch: Mapping[int, int]
) -> dict[int, Spot]:
    """Return the spots of the ops of one position; `members` ascend."""
    inside = frozenset(members)
    stands_for: dict[int, int] = {}
    for n in members:  # no tuple passes from one call to another
        operand = entry.instructions[n].operands[:1]
        stands_for[n] = stands_for[operand[0]] if is_element(entry, inside, n) else n
    edges = dict.fromkeys(
        (stands_for[i], stands_for[n])
        for n in members
        for i in entry.instructions[n].operands
        if i in inside and stands_for[i] != stands_for[n]
    )
    earliest = dict.fromkeys(members, 0)
    for a, b in _by(edges, lambda edge: edge[1]):
        earliest[b] = max(earliest[b], earliest[a] + (branch[a] != branch[b]))
    last = max((earliest[n] for n in stands_for.values() if branch[n] != JOIN), default=0)
    # Branches whose results nothing here waits for go beside those that begin last.
    ends = set(stands_for.values()) - {a for a, _ in edges}
    latest = {n: earliest[n] if branch[n] == JOIN else last for n in ends}
    for a, b in _by(edges, lambda edge: -edge[0]):
        until = latest[b] - (branch[a] != branch[b])
        latest[a] = min(latest.get(a, until), until)
    work_of: dict[int, float] = {}
    for n, m in stands_for.items():
        work_of[m] = work_of.get(m, 0.0) + work(entry, entry.instructions[n])
    levels = _chosen(_by(edges, lambda edge: edge[1]), earliest, latest, branch, work_of)
    return {n: Spot(levels[m], branch[m]) for n, m in stands_for.items()}


def _chosen(
    edges: Sequence[tuple[int, int]],
    earliest: Mapping[int, int],
    latest: Mapping[int, int],
    branch: Mapping[int, int],
    work_of: Mapping[int, float],
) -> dict[int, int]:
    """Return the level of each op: those of a branch as early or as late as can be.

    Whichever lets all levels together last less; `edges` go by what reads.
    """

    def levels(early: frozenset[int]) -> dict[int, int]:
        level_by_op = {n: earliest[n] if branch[n] in early else latest[n] for n in latest}
        for a, b in edges:
            level_by_op[b] = max(level_by_op[b], level_by_op[a] + (branch[a] != branch[b]))
        return level_by_op

    def length(early: frozenset[int]) -> float:
        busy: dict[int, dict[int, float]] = {}
        for n, level in levels(early).items():
            there, ipu = busy.setdefault(level, {}), max(branch[n], 0)
            there[ipu] = there.get(ipu, 0.0) + work_of[n]
        return sum(max(there.values()) for there in busy.values())

    branches = sorted({branch[n] for n in latest} - {JOIN})
    best = min((frozenset(), frozenset(branches)), key=length)
    for each in branches:
        best = min((best, best ^ {each}), key=length)
    return levels(best)


def _by(
    edges: Iterable[tuple[int, int]], key: Callable[[tuple[int, int]], int]
) -> list[tuple[int, int]]:
    return sorted(edges, key=key)
