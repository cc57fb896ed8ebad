"""The branch of every op in stages whose branches run at once on several IPUs.

Forward ops say `frontend_attributes={ipu_branch="1"}`, and others take the branch of what they
read, or else of what reads them; where a stage says nothing, `independent_parts` finds branches.
What reads results of several branches joins them; it runs on the stage's first IPU, as does what
comes before several branches. Of the backward pass an op belongs where the forward values and
weights are that it reads, or else where its cotangents come from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.partition.stages.assignment import Stages
from hloipu_compiler.partition.stages.backward_places import is_small
from hloipu_compiler.partition.stages.independent_parts import JOIN, independent_parts
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.reach import parameter_positions
from hloipu_compiler.partition.training.step_phases import FORWARD, FREE, Phases


def marked_branches(entry: Computation) -> dict[int, int]:
    """Return the branch of every op whose attribute `ipu_branch` says so.

    Raises StagingError E0560 for one that is no number.
    """
    branch_by_op: dict[int, int] = {}
    for position, op in enumerate(entry.instructions):
        text = op.attributes.text("frontend_attributes")
        if "ipu_branch" not in text:
            continue
        value = read_frontend_attributes(text).get("ipu_branch", "")
        if not (value.isdecimal() and len(value) < 6):
            raise StagingError(
                "E0560",
                f"{op.name!r} is annotated with ipu_branch={value!r}, which is not a number",
                hint="number the branches of a stage from 0",
            )
        branch_by_op[position] = int(value)
    return branch_by_op


def branch_counts(
    phases: Phases, stages: Stages, marked: Mapping[int, int], count: int
) -> list[int]:
    """Return how many branches each stage is annotated with; 0: none.

    Raises StagingError E0560 where their numbers leave a gap.
    """
    said: list[set[int]] = [set() for _ in range(count)]
    for position, branch in marked.items():
        if phases.phase[position] == FORWARD:
            said[stages[position]].add(branch)
    for stage, branches in enumerate(said):
        missing = sorted(set(range(max(branches, default=-1) + 1)) - branches)
        if missing:
            raise StagingError(
                "E0560",
                f"no op of stage {stage} is annotated with branch {missing[0]}, and some are with "
                f"branch {max(branches)}",
                hint="number the branches of a stage from 0 without gaps",
            )
    return [len(branches) for branches in said]


@dataclass(frozen=True)
class Branching:
    """What branches are found from."""

    entry: Computation
    phases: Phases
    stages: Stages
    marked: Mapping[int, int]

    def forward(self, stage: int, count: int, cycles: Sequence[float]) -> dict[int, int]:
        """Return the branch of each forward op of a stage, or `JOIN`.

        `cycles`: of each op, where nothing is annotated. Raises StagingError E0562 for branches
        that depend on one another, E0563 for weights that two of them read, E0564 for a stage that
        does not fall into so many.
        """
        members = [
            n
            for n, phase in enumerate(self.phases.phase)
            if phase == FORWARD and self.stages[n] == stage
        ]
        if any(n in self.marked for n in members):
            branch_by_op = self._spread_marks(members)
            self._require_independence(stage, members, branch_by_op)
        else:
            branch_by_op = self._found(stage, members, count, cycles)
        self._require_own_weights(stage, members, branch_by_op)
        return branch_by_op

    def _found(
        self, stage: int, members: Sequence[int], count: int, cycles: Sequence[float]
    ) -> dict[int, int]:
        parts = independent_parts(self.entry, members, self.weights, cycles, count)
        if parts.used < count:
            raise StagingError(
                "E0564",
                f"stage {stage} is to run on {count} IPUs at once, and its ops make "
                f"{max(parts.used, 0)} part{'s' if parts.used != 1 else ''} that do not depend on "
                "one another",
                hint='give it fewer IPUs, or say with frontend_attributes={ipu_branch="0"} which '
                "ops run beside others",
            )
        return dict(parts.branch)

    @cached_property
    def weights(self) -> dict[int, frozenset[int]]:
        """The weights, by number, that each op reads that is not the same for all micro-batches."""
        trained = {pair.parameter for pair in (*self.phases.updated, *self.phases.per_micro_batch)}
        empty: frozenset[int] = frozenset()
        known: dict[int, frozenset[int]] = {}
        for number, positions in enumerate(parameter_positions(self.entry)):
            for position in positions if number in trained else ():
                if not is_small(self.entry.instructions[position].shape):
                    known[position] = known.get(position, empty) | {number}
        weights_by_op: dict[int, frozenset[int]] = {}
        for position, op in enumerate(self.entry.instructions):
            read = empty.union(*(known.get(i, empty) for i in op.operands))
            if read and self.phases.phase[position] in (FREE, ""):
                known[position] = known.get(position, empty) | read
            elif read:
                weights_by_op[position] = read
        return weights_by_op

    def _spread_marks(self, members: Sequence[int]) -> dict[int, int]:
        inside, branch_by_op = frozenset(members), dict[int, int]()
        owners: dict[int, set[int]] = {}
        for n in members:
            for weight in self.weights.get(n, ()) if n in self.marked else ():
                owners.setdefault(weight, set()).add(self.marked[n])
        for n in members:
            operands = self.entry.instructions[n].operands
            here = {branch_by_op[i] for i in operands if i in branch_by_op}
            here.update(*(owners.get(weight, ()) for weight in self.weights.get(n, ())))
            if is_element(self.entry, inside, n):
                if operands[0] in branch_by_op:
                    branch_by_op[n] = branch_by_op[operands[0]]
            elif n in self.marked:
                branch_by_op[n] = self.marked[n]
            elif here:
                branch_by_op[n] = here.pop() if len(here) == 1 else JOIN
        for n in reversed(members):
            if n not in branch_by_op:
                there = {branch_by_op.get(u, JOIN) for u in self.entry.users[n] if u in inside}
                branch_by_op[n] = there.pop() if len(there) == 1 else JOIN
        for n in members:
            if is_element(self.entry, inside, n):
                branch_by_op[n] = branch_by_op[self.entry.instructions[n].operands[0]]
        return branch_by_op

    def _require_independence(
        self, stage: int, members: Sequence[int], branch_by_op: Mapping[int, int]
    ) -> None:
        """Raise StagingError E0562 where an op of a branch needs what another branch makes."""
        reached: dict[int, dict[int, int]] = {}
        for n in members:
            mine: dict[int, int] = {}
            for i in self.entry.instructions[n].operands:
                mine |= reached.get(i, {})
            other = next((b for b in sorted(mine) if b != branch_by_op[n] != JOIN), None)
            if other is not None:
                names = [self.entry.instructions[i].name for i in (n, mine[other])]
                raise StagingError(
                    "E0562",
                    f"{names[0]!r} of branch {branch_by_op[n]} of stage {stage} needs {names[1]!r} "
                    "of "
                    f"branch {other}",
                    hint="branches of a stage run at once: put one of them into a later stage, or "
                    "leave ipu_branch out of what reads several",
                )
            if branch_by_op[n] != JOIN:
                mine[branch_by_op[n]] = n
            reached[n] = mine

    def _require_own_weights(
        self, stage: int, members: Sequence[int], branch_by_op: Mapping[int, int]
    ) -> None:
        """Raise StagingError E0563 where two branches read one weight."""
        first: dict[int, int] = {}
        for n in members:
            for weight in sorted(self.weights.get(n, ())) if branch_by_op[n] != JOIN else ():
                other = first.setdefault(weight, n)
                if branch_by_op[other] != branch_by_op[n]:
                    names = [self.entry.instructions[i].name for i in (other, n)]
                    raise StagingError(
                        "E0563",
                        f"branches {branch_by_op[other]} and {branch_by_op[n]} of stage {stage} "
                        "share parameter "
                        f"{weight}: {names[0]!r} and {names[1]!r} read it",
                        hint="put what reads it into one branch, or before both",
                    )


def is_element(entry: Computation, inside: frozenset[int], position: int) -> bool:
    """Whether an op takes an array out of a tuple made in the stage: it stays there."""
    op = entry.instructions[position]
    return op.opcode == "get-tuple-element" and op.operands[0] in inside


def require_map(asked: Sequence[Sequence[int]], stages: int) -> None:
    """Raise StagingError E0507 for a device map, if there is one, that does not fit the stages."""
    if not asked:
        return
    said = ""
    if len(asked) != stages:
        said = f"is for {len(asked)} stages; there {'is one' if stages == 1 else f'are {stages}'}"
    elif any(len(set(here)) != max(len(here), 1) for here in asked):
        said = "has a stage on no IPU, or on one twice"
    if said:
        raise StagingError(
            "E0507",
            f"the device map {said}",
            hint="give an IPU for each stage, or several in brackets: --device-map 0,[1,2],3",
        )


def stage_ipus(
    asked: Sequence[tuple[int, ...]], branches: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return the IPUs of each stage.

    `asked`: the device map, or nothing; `branches`: how many each stage is annotated with, 0 where
    it is not. A stage on one IPU does its branches in turn. Raises StagingError E0507 for a device
    map that does not fit the stages, E0561 for one that does not fit their branches.
    """
    require_map(asked, len(branches))
    mapped = tuple(asked)
    if not mapped:
        first, one_by_one = 0, []
        for count in branches:
            one_by_one.append(tuple(range(first, first + max(count, 1))))
            first += max(count, 1)
        return tuple(one_by_one)
    for stage, (here, count) in enumerate(zip(mapped, branches, strict=True)):
        if count and len(here) not in (1, count):
            raise StagingError(
                "E0561",
                f"the device map puts stage {stage} on {len(here)} IPUs, "
                f"and its ops are annotated with {count} branch{'es' if count > 1 else ''}",
                hint="give it an IPU for each branch, or one for all",
            )
    return mapped
