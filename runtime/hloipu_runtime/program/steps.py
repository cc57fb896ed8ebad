"""The steps of a program: compute sets, exchanges, control, streams.

Every step says things twice. Its *descriptors* are what tiles do: variables, parts, transfers. Its
*logical form* is what that means: which numbered value is computed from which. `verify` proves
that the descriptors do what the logical form says.
"""

from functools import cached_property
from typing import Any, NamedTuple

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.frozen import dataclass, fields_of
from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.mapping import Box, Sizes, Spans, Tiles
from hloipu_runtime.program.timetable import Timetable

VariableId = int
ValueId = int


class Operand(NamedTuple):
    """The part of a variable that each vertex of a group reads or writes on its own tile."""

    variable: VariableId
    spans: Spans


@dataclass(frozen=True)
class VertexGroup:
    """One codelet on a grid of tiles, one vertex or one team of workers on each."""

    codelet: Codelet
    tiles: Tiles
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    reads: tuple[ValueId, ...]
    """Logical form: the value of each input."""
    writes: tuple[ValueId, ...]
    """Logical form: the value of each output."""
    name: str = ""
    """The instruction that it comes from."""


@dataclass(frozen=True)
class ComputeSet:
    """Vertex groups that run between two syncs."""

    groups: tuple[VertexGroup, ...]

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without what is worked out of them."""
        return fields_of(self)

    @cached_property
    def reads(self) -> frozenset[VariableId]:
        """Variables that vertices read."""
        return frozenset([x.variable for group in self.groups for x in group.inputs])

    @cached_property
    def writes(self) -> frozenset[VariableId]:
        """Variables that vertices write."""
        return frozenset([x.variable for group in self.groups for x in group.outputs])

    @cached_property
    def touches(self) -> frozenset[VariableId]:
        """Both."""
        return self.reads | self.writes


@dataclass(frozen=True)
class Transfer:
    """Copies parts of one variable into another: each receiving tile takes what it is to hold.

    On the tile at a grid coordinate, the destination's elements in `spans` and in `box` are
    taken from the source's elements whose indices are larger by `shift`, wherever they lie.
    """

    source: VariableId
    destination: VariableId
    tiles: Tiles
    """The receivers' grid."""
    receivers: Box
    """Grid coordinates that take part, along each axis."""
    spans: Spans
    """Of the destination."""
    box: Box
    """Of the destination's elements."""
    shift: Sizes
    view: Sizes
    """The source's elements in row-major order seen in this shape."""
    value: ValueId
    """Logical form: what is copied."""


class Piece(NamedTuple):
    """Logical form of a transfer: elements of a value, seen in a shape, put at a box."""

    value: ValueId
    view: Sizes
    box: Box
    shift: Sizes


@dataclass(frozen=True)
class Definition:
    """Logical form of what an exchange leaves in a variable."""

    variable: VariableId
    value: ValueId
    base: ValueId | None
    """What stays where no piece is put; None: the pieces are all."""
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Exchange:
    """Transfers that all happen at once, between and within tiles."""

    transfers: tuple[Transfer, ...]
    definitions: tuple[Definition, ...]
    name: str = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without what is worked out of them."""
        return fields_of(self)

    @cached_property
    def reads(self) -> frozenset[VariableId]:
        """Variables that transfers copy."""
        return frozenset([transfer.source for transfer in self.transfers])

    @cached_property
    def writes(self) -> frozenset[VariableId]:
        """Variables that transfers copy to, or that are new."""
        return frozenset(
            [
                *[transfer.destination for transfer in self.transfers],
                *[definition.variable for definition in self.definitions],
            ]
        )

    @cached_property
    def touches(self) -> frozenset[VariableId]:
        """Both."""
        return self.reads | self.writes


@dataclass(frozen=True)
class Sync:
    """A barrier between all tiles of one IPU, or of all IPUs."""

    ipus: int = 1


@dataclass(frozen=True)
class StreamIn:
    """Takes the next element of a host stream into a variable."""

    stream: str
    variable: VariableId
    value: ValueId


@dataclass(frozen=True)
class StreamOut:
    """Hands a variable to a host stream."""

    stream: str
    variable: VariableId
    value: ValueId


@dataclass(frozen=True)
class Sequence:
    """Steps one after the other."""

    steps: tuple["Step", ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without what is worked out of them."""
        return fields_of(self)

    @cached_property
    def uses(self) -> "Uses":
        """What its steps and those inside of them read, write and call."""
        from hloipu_runtime.program.uses import uses_of

        return uses_of(self.steps)


class Uses(NamedTuple):
    """What steps do with variables, those in functions that they call left out."""

    touched: frozenset[VariableId]
    """Variables that they read or write."""
    writes: frozenset[VariableId]
    """Those that they may write."""
    called: frozenset[str]
    """Functions."""


@dataclass(frozen=True)
class Parallel:
    """Branches on IPUs of their own, at the same time."""

    branches: tuple[Sequence, ...]


class Carried(NamedTuple):
    """A variable that a loop hands from one iteration to the next, and the values that it holds."""

    variable: VariableId
    initial: ValueId
    """Before the loop."""
    turn: ValueId
    """At the start of each iteration, and in the condition."""
    following: ValueId
    """At the end of each iteration."""
    final: ValueId
    """After the loop."""


@dataclass(frozen=True)
class Repeat:
    """Runs its body a known number of times."""

    count: int
    body: Sequence
    carried: tuple[Carried, ...]
    name: str = ""


class Paged(NamedTuple):
    """A carried variable of remote memory that a position works on where it was brought to.

    It comes to tiles before the first micro-batch of each group, and goes back after the last.
    Logical form: it comes and goes with each micro-batch.
    """

    there: VariableId
    here: VariableId


class Stage(NamedTuple):
    """One position of a pipeline: what it does with each micro-batch."""

    name: str
    """`F0`, `B3` and the like."""
    ipus: tuple[int, ...]
    """All that it works on; it begins when they are free, and keeps them until it is through."""
    body: Sequence
    first: Sequence = Sequence()
    """Before the first micro-batch of each group: copies of what all of them read."""
    paged: tuple[Paged, ...] = ()
    """What all micro-batches of a group change."""

    @property
    def blocks(self) -> tuple[Sequence, ...]:
        """Its blocks: before a group, if any, and per micro-batch."""
        return (self.first, self.body) if self.first.steps else (self.body,)


class Channel(NamedTuple):
    """A value that one position of a pipeline hands to a later one.

    At the end of the producer's slot for micro-batch m the source is copied to place m modulo the
    number of places, on an IPU of the consumer; before the consumer's body for m, from there to the
    destination. A single place may be the destination itself, and is then read where it lies.
    Places may all lie in remote memory: what comes from another IPU goes by way of the destination
    then.
    """

    producer: int
    consumer: int
    source: VariableId
    places: tuple[VariableId, ...]
    destination: VariableId
    value: ValueId
    """In the source at the end of the producer's body, in the destination for the consumer's."""


@dataclass(frozen=True)
class Pipeline:
    """Runs every micro-batch through all positions, several at a time.

    Position s does micro-batch m in slot `interval * m + s`. In a slot, positions that share an IPU
    take turns, later ones first, and IPUs work at the same time; then channels are copied, and all
    IPUs meet. Logical form: all bodies in order, once for each micro-batch. With `group` above 1,
    one position works at a time, with so many micro-batches before the next one does (`timetable`).
    """

    count: int
    """Micro-batches."""
    interval: int
    """Slots from one micro-batch to the next."""
    stages: tuple[Stage, ...]
    """By position."""
    channels: tuple[Channel, ...]
    carried: tuple[Carried, ...]
    """Each of them is read and written by one position only, or by several that add to it."""
    name: str = ""
    group: int = 1
    """Micro-batches that a position does before the next position does."""

    def as_repeat(self) -> Repeat:
        """Return the logical form: one micro-batch after the other, copies before groups aside.

        It has no name, as no loop of the module is its origin.
        """
        bodies = tuple(stage.body for stage in self.stages)
        return Repeat(self.count, Sequence(bodies), self.carried)

    @property
    def timetable(self) -> Timetable:
        """The slots."""
        return Timetable(len(self.stages), self.interval, self.count, self.group)


@dataclass(frozen=True)
class RepeatWhile:
    """Runs condition and body until the predicate that the condition leaves is false."""

    condition: Sequence
    predicate: VariableId
    predicate_value: ValueId
    body: Sequence
    carried: tuple[Carried, ...]
    name: str = ""


class Merged(NamedTuple):
    """A variable that every branch leaves a value in."""

    variable: VariableId
    branch_values: tuple[ValueId, ...]
    value: ValueId
    """After the branches."""


@dataclass(frozen=True)
class If:
    """Runs one of two branches, as a predicate says."""

    predicate: VariableId
    predicate_value: ValueId
    then: Sequence
    otherwise: Sequence
    merged: tuple[Merged, ...]
    name: str = ""

    @property
    def branches(self) -> tuple[Sequence, ...]:
        """Both branches, the one for true first."""
        return (self.then, self.otherwise)


@dataclass(frozen=True)
class Switch:
    """Runs the branch that an index says; an index out of range runs the last one."""

    index: VariableId
    index_value: ValueId
    branches: tuple[Sequence, ...]
    merged: tuple[Merged, ...]
    name: str = ""


class Passed(NamedTuple):
    """A variable that a function shares with its callers, and the values that it holds."""

    variable: VariableId
    outer: ValueId
    """For the caller."""
    inner: ValueId
    """For the function, the same at every call."""


@dataclass(frozen=True)
class Call:
    """Runs a function of the program, whose code is there once, however often it is called.

    All calls pass the same variables. A function reads constants and its arguments; whatever else
    it writes is lost when it ends, but for its results.
    """

    function: str
    arguments: tuple[Passed, ...] = ()
    """At the start of the function."""
    results: tuple[Passed, ...] = ()
    """At its end."""


def function_path(name: str) -> str:
    """Return the path of a function's block, which is one, however often it is called."""
    return f"{name}()"


Step = (
    ComputeSet
    | Exchange
    | Sync
    | StreamIn
    | StreamOut
    | Collective
    | RemoteCopy
    | Sequence
    | Parallel
    | Repeat
    | Pipeline
    | RepeatWhile
    | If
    | Switch
    | Call
)


LOOPS = (Repeat, RepeatWhile, Pipeline)
"""Steps whose blocks run again and again."""


def blocks_of(step: Step) -> tuple[Sequence, ...]:
    """Return the bodies, conditions and branches of a step; none of a plain one or a sequence."""
    match step:
        case Parallel() | If() | Switch():
            return step.branches
        case Repeat():
            return (step.body,)
        case Pipeline():
            return tuple(block for stage in step.stages for block in stage.blocks)
        case RepeatWhile():
            return (step.condition, step.body)
        case _:
            return ()


UNKNOWN_ITERATIONS = 16
"""Of a loop that data ends; assumed: more than once, and not as often as counted ones."""


def iterations(step: Step) -> int:
    """Return how often a loop runs what is within it; 1 for a step that is none."""
    match step:
        case Repeat() | Pipeline():
            return step.count
        case RepeatWhile():
            return UNKNOWN_ITERATIONS
        case _:
            return 1


def inner_steps(step: Step) -> tuple[Step, ...]:
    """Return the steps and blocks right within a step; a call's function is not within it."""
    return step.steps if isinstance(step, Sequence) else blocks_of(step)
