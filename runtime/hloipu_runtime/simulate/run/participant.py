"""An engine's place among participants, and how it meets the others in collectives."""

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from hloipu_runtime.codelets.core.expression import region
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels import collectives as kernels
from hloipu_runtime.kernels.core.monoids import Combiner
from hloipu_runtime.program import collective as c
from hloipu_runtime.program.collective import IDENTITIES, OWN_PART, REPLICA_ID, Collective
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.simulate.run.meeting import Meeting


@dataclass(frozen=True)
class Participant:
    """One participant; without a meeting it stands for all, who are identical."""

    number: int = 0
    partitions: int = 1
    meeting: Meeting | None = None

    def meet(
        self, program: Program, step: Collective, place: str, operands: list[Array]
    ) -> Sequence[Array]:
        """Return the results of a collective, once all members of the group have come.

        Raises MeetingError where they will not, UsageError E2071 where one engine stands for
        several participants that differ.
        """
        form = step.form
        if form.kind in IDENTITIES:
            return [np.array(self._identity(form.kind, program, step), np.uint32)]
        if form.kind == OWN_PART:
            return [self._own_part(program, step, operands[0])]
        types = [program.variables[moved.variable].element_type for moved in step.inputs]
        group = form.group_of(self.number)
        me = group.index(self.number)
        if self.meeting is None or len(group) == 1:
            return group_results(form, group, types, [operands] * len(group))[me]
        return self.meeting.attend(
            f"{place} {step.name}".rstrip(),
            group,
            me,
            operands,
            lambda members: group_results(form, group, types, members),
        )

    def _identity(self, kind: str, program: Program, step: Collective) -> int:
        count = program.replicas if kind == REPLICA_ID else program.partitions
        self._require_one(step, alone=count == 1)
        replica, partition = divmod(self.number, self.partitions)
        return replica if kind == REPLICA_ID else partition

    def _own_part(self, program: Program, step: Collective, whole: Array) -> Array:
        starts = step.form.starts
        self._require_one(step, alone=len(set(starts)) == 1)
        sizes = program.variables[step.outputs[0].variable].shape
        pairs = zip(starts[self.number], sizes, strict=True)
        return whole[tuple(slice(first, first + n) for first, n in pairs)].copy()

    def _require_one(self, step: Collective, *, alone: bool) -> None:
        """Refuse to say for all participants what differs between them."""
        if self.meeting is None and not alone:
            raise UsageError(
                "E2071",
                f"{step.name or step.form.kind}: replicas were declared identical, and the program "
                "asks which one it is",
                hint="run every replica with data of its own",
            )


ALONE = Participant()
"""The only one, or one for all."""


Members = list[list[Array]]
"""Of each member, in group order, its operands or its results."""


def group_results(
    form: c.CollectiveForm, group: Sequence[int], types: Sequence[str], members: Members
) -> Members:
    """Return the members' results from their operands; `types` are those of the operands.

    The order of sums is the group's, whoever comes first.
    """
    everyone = [range(len(members))]
    if form.kind == c.ALL_TO_ALL and form.dimension == c.TUPLE_FORM:
        return kernels.all_to_all_tuple(members, everyone)
    if form.kind == c.RAGGED:
        return [[x] for x in kernels.ragged_all_to_all(members, everyone)]
    apply = _of_one_operand(form, group)
    columns = [
        apply(list(column), kind)
        for column, kind in zip(zip(*members, strict=True), types, strict=True)
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _of_one_operand(
    form: c.CollectiveForm, group: Sequence[int]
) -> Callable[[list[Array], str], list[Array]]:
    how = _combiner(form)

    def apply(operands: list[Array], kind: str) -> list[Array]:
        everyone = [range(len(operands))]
        match form.kind:
            case c.ALL_REDUCE:
                return kernels.all_reduce(operands, everyone, how, kind)
            case c.REDUCE_SCATTER:
                return kernels.reduce_scatter(operands, everyone, form.dimension, how, kind)
            case c.ALL_GATHER:
                return kernels.all_gather(operands, everyone, form.dimension)
            case c.ALL_TO_ALL:
                return kernels.all_to_all(operands, everyone, form.dimension)
            case c.BROADCAST:
                if len(operands) == 1 and not any(group[0] in x for x in form.groups):
                    return [np.zeros_like(operands[0])]
                return kernels.collective_broadcast(operands, everyone)
            case c.PERMUTE:
                places = {member: place for place, member in enumerate(group)}
                pairs = [(places[a], places[b]) for a, b in form.pairs if a in places]
                return kernels.collective_permute(operands, pairs)
            case _:
                raise ValueError(f"{form.kind} takes no operands")

    return apply


def _combiner(form: c.CollectiveForm) -> Combiner:
    if form.monoid or form.body is None:
        return cast(Combiner, form.monoid)
    return region(form.body)
