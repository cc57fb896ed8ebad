"""An engine's place among participants, and how it meets the others."""

from collections.abc import Sequence

import numpy as np

from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.collective import IDENTITIES, OWN_PART, REPLICA_ID, Collective
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.simulate.run.collectives import group_results
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
