"""Collective steps, and steps on remote buffers.

Participants are numbered replica * partitions + partition. Each of them runs the same program; a
collective takes whole tensors from all members of a group and gives each of them its results.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.monoids import UFUNCS

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all-reduce", "reduce-scatter", "all-gather"
ALL_TO_ALL, RAGGED = "all-to-all", "ragged-all-to-all"
PERMUTE, BROADCAST = "collective-permute", "collective-broadcast"
REPLICA_ID, PARTITION_ID = "replica-id", "partition-id"
OWN_PART = "own-part"
"""Each participant takes its own part of what it has; nobody meets, and no link is used."""
KINDS = (
    ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, RAGGED, PERMUTE, BROADCAST,
    REPLICA_ID, PARTITION_ID, OWN_PART,
)  # fmt: skip
IDENTITIES = (REPLICA_ID, PARTITION_ID)
"""Kinds that meet nobody: they say who a participant is."""
REDUCING = (ALL_REDUCE, REDUCE_SCATTER)
TUPLE_FORM = -1
"""Dimension of an all-to-all whose operands go one to each member."""

Groups = tuple[tuple[int, ...], ...]
Kind = tuple[str, tuple[int, ...]]
"""Element type and shape."""


class Moved(NamedTuple):
    """A variable, and the value that is in it."""

    variable: int
    value: int


@dataclass(frozen=True)
class CollectiveForm:
    """Computation of a collective on the tensors of a group's members."""

    kind: str
    groups: Groups = ()
    """Participants that belong together, in order; those in none stand alone."""
    pairs: tuple[tuple[int, int], ...] = ()
    """Of a permutation: participants that send and receive."""
    dimension: int = 0
    """That is split or joined."""
    monoid: str = ""
    """That reduces; empty: `body` says how."""
    body: Expression | None = None
    """The reducer on scalars, where no monoid is one."""
    starts: tuple[tuple[int, ...], ...] = ()
    """Of an own part: where that of each participant begins, by dimensions."""

    def group_of(self, participant: int) -> tuple[int, ...]:
        """Return the members of a participant's group."""
        return next((g for g in self.groups if participant in g), (participant,))

    @property
    def group_size(self) -> int:
        """Members of the largest group."""
        return max(map(len, self.groups), default=1)


@dataclass(frozen=True)
class Collective:
    """Meets the same step of other participants: whole tensors in, whole tensors out.

    A result may lie where an operand lay.
    """

    form: CollectiveForm
    inputs: tuple[Moved, ...]
    outputs: tuple[Moved, ...]
    name: str = ""
    """The instruction that it comes from."""


@dataclass(frozen=True)
class RemoteCopy:
    """Copies a value between the tiles of an IPU and a buffer in the memory beside it.

    One of the two variables lies in remote memory. Logical form: nothing, the value stays the same.
    """

    source: int
    destination: int
    value: int


def form_faults(
    form: CollectiveForm, inputs: Sequence[Kind], outputs: Sequence[Kind], participants: int
) -> Iterator[str]:
    """Yield what is wrong with a collective of tensors of these kinds."""
    if form.kind not in KINDS:
        yield f"there is no collective {form.kind[:40]!r}"
        return
    if form.kind in IDENTITIES:
        if inputs or list(outputs) != [("u32", ())]:
            yield f"{form.kind} makes one u32[] of nothing"
        return
    if form.kind == OWN_PART:
        yield from _part_faults(form, inputs, outputs, participants)
        return
    named = [participant for group in form.groups for participant in group] + [
        participant for pair in form.pairs for participant in pair
    ]
    if any(not 0 <= participant < participants for participant in named):
        yield f"names participant {max(named)}; there are {participants}"
    if len({participant for group in form.groups for participant in group}) != sum(
        map(len, form.groups)
    ):
        yield "names a participant in two places"
    if form.kind == PERMUTE:
        for ends in zip(*form.pairs, strict=True):
            if len(set(ends)) != len(ends):
                yield "a participant sends twice, or receives twice"
    if form.kind in REDUCING and form.monoid not in UFUNCS and form.body is None:
        yield f"there is no reduction {form.monoid[:40]!r}"
    yield from _shape_faults(form, list(inputs), list(outputs), participants)


def _part_faults(
    form: CollectiveForm, inputs: Sequence[Kind], outputs: Sequence[Kind], participants: int
) -> Iterator[str]:
    if len(inputs) != 1 or len(outputs) != 1 or len(form.starts) != participants:
        yield f"an own part is of one tensor, for each of {participants} participants"
        return
    ((type_in, full_sizes), (type_out, part_sizes)) = inputs[0], outputs[0]
    fits = type_in == type_out and len(full_sizes) == len(part_sizes)
    if not fits or not all(
        len(starts) == len(full_sizes)
        and all(0 <= a <= n - m for a, n, m in zip(starts, full_sizes, part_sizes, strict=True))
        for starts in form.starts
    ):
        yield "a part is not within its tensor"


def _shape_faults(
    form: CollectiveForm, inputs: list[Kind], outputs: list[Kind], participants: int
) -> Iterator[str]:
    kind, size = form.kind, form.group_size
    if kind == RAGGED:
        if len(inputs) != 6 or outputs != inputs[1:2]:
            yield "a ragged all-to-all makes its second operand anew"
        return
    if len(inputs) != len(outputs):
        yield f"{len(inputs)} operands and {len(outputs)} results"
        return
    if kind in (ALL_REDUCE, PERMUTE, BROADCAST):
        if inputs != outputs:
            yield "a result is of another type or shape than its operand"
        return
    alone = participants - sum(map(len, form.groups))
    if size > 1 and (alone or any(len(group) != size for group in form.groups)):
        yield "its groups are not of one size, or do not have all participants"
    if kind == ALL_TO_ALL and form.dimension == TUPLE_FORM:
        if inputs != outputs or len(inputs) != size:
            yield "an all-to-all has not one operand for each member"
        return
    for (type_in, before), (type_out, after) in zip(inputs, outputs, strict=True):
        small, large = (before, after) if kind == ALL_GATHER else (after, before)
        if not 0 <= form.dimension < len(small):
            yield f"there is no dimension {form.dimension}"
            continue
        grown = list(small)
        if kind != ALL_TO_ALL:
            grown[form.dimension] *= size
        elif small[form.dimension] % size:
            yield f"{small[form.dimension]} cannot be split over {size} members"
        if tuple(grown) != large or type_in != type_out:
            yield "a result is not of the shape that its operand makes"
