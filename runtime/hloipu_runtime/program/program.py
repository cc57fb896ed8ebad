"""The program record: variables, values, constants and the tree of steps."""

from collections.abc import Callable
from dataclasses import field, replace
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.mapping import Mapping, Sizes
from hloipu_runtime.program.stacks import Partitioning, Stack
from hloipu_runtime.program.steps import Sequence, ValueId, VariableId

Array = np.ndarray[Any, Any]

RANDOM_STATE = "(random state)"
"""Origin of the constant from which stateful random ops draw: u64[3], a key and a position."""


class Role(Enum):
    """Purpose of a variable, which decides how long it lives."""

    TEMPORARY = "temporary"
    """Result of a vertex, or buffer of an exchange."""
    CONSTANT = "constant"
    """Loaded with the program, never written."""
    PARAMETER = "parameter"
    """Filled from the host."""
    STATE = "state"
    """Stays on the device between runs."""
    BUFFER = "buffer"
    """Of a host stream on tiles set apart for it: filled or drained while others compute."""
    REMOTE = "remote"
    """State in the memory beside an IPU, which only remote copies reach."""


@dataclass(frozen=True)
class Variable:
    """A tensor that lies on the tiles of one IPU."""

    name: str
    element_type: str
    shape: Sizes
    mapping: Mapping
    role: Role = Role.TEMPORARY
    ipu: int = 0
    origin: str = ""
    """The instruction that it holds the result of."""

    @cached_property
    def bytes_per_tile(self) -> int:
        """Bytes of the largest part that a tile holds."""
        return (prod(self.mapping.block) * ELEMENT_TYPES[self.element_type].bits + 7) // 8


@dataclass(frozen=True)
class Value:
    """A tensor of the logical form: what a variable holds for a while."""

    element_type: str
    shape: Sizes
    origin: str = ""


@dataclass(frozen=True)
class Port:
    """A parameter or a result of the program, and the stream that carries it."""

    stream: str
    element_type: str
    shape: Sizes
    alias: int = -1
    """Of a result: the number of the parameter whose memory it takes over; -1: none."""


@dataclass(frozen=True)
class StatePort:
    """A variable that keeps what it holds from one run to the next; no stream carries it."""

    name: str
    variable: VariableId
    initial: ValueId
    """What it holds when a run begins."""
    final: ValueId
    """What it holds when a run ends."""
    parameter: int = -1
    """Number of the entry's parameter that it stands for, arrays counted; -1: none."""
    result: int = -1
    """Number of the result that it takes in, arrays counted; -1: none."""
    whole: Sizes = ()
    """Shape of an array of which each replica keeps one part; empty: each keeps all of it.

    Parts are of one size, taken from the array's elements in row-major order, with zeros behind
    the last one.
    """


@dataclass(frozen=True)
class Queue:
    """A host queue: each of its elements is one array for each of its streams."""

    name: str
    to_device: bool
    streams: tuple[Port, ...]
    places: tuple[int, ...] = ()
    """Numbers of the parameters that it feeds, or of the results that it takes, if any."""
    reduction: str = ""
    """`sum` or `mean`: the device makes the elements of a run one, which it gives at its end."""
    mode: str = ""
    """Which elements an outfeed keeps unless a session says otherwise; empty: all."""
    names: tuple[str, ...] = ()
    """Of the parameters that it feeds, by which dictionaries of arrays are bound.

    Of an outfeed, the keys of its elements; empty: these are arrays or tuples of them.
    """


_LONGEST_NAME = 200
"""Characters of a name that are shown."""


@dataclass(frozen=True)
class Program:
    """Variables, values, steps; `constants` holds arrays in storage form, by variable."""

    name: str
    machine: str
    ipus: int
    variables: tuple[Variable, ...]
    values: tuple[Value, ...]
    constants: dict[VariableId, tuple[ValueId, Array]] = field(default_factory=dict)
    body: Sequence = field(default_factory=Sequence)
    functions: dict[str, Sequence] = field(default_factory=dict)
    parameters: tuple[Port, ...] = ()
    results: tuple[Port, ...] = ()
    elided: tuple[str, ...] = ()
    """Instructions whose constants the text left out; zeros stand for them, nothing may run."""
    state: tuple[StatePort, ...] = ()
    queues: tuple[Queue, ...] = ()
    steps_per_run: int = 1
    """Steps of training, say, that one run does: the iterations of the loop around them."""
    loaded: tuple[ValueId, ...] = ()
    """Values of the first parameters, where these are loaded: constants hold them.

    Until they are given, zeros stand for them (`program.loading`); no stream carries them.
    """

    replicas: int = 1
    """Copies of the program, each on as many IPUs and with state and data of its own."""
    partitions: int = 1
    """Parts of one copy that run the same steps on tensors of their own."""
    places: tuple[int, ...] = ()
    """Where each IPU of each participant is, one participant after the other; empty: in order."""
    system_ipus: int = 0
    """Of the system that these places are in; 0: as many as the participants have."""
    stacks: tuple[Stack, ...] = ()
    """Arrays of which parameters or results are pieces: users see them whole (`program.seen`)."""
    partitioning: Partitioning | None = None
    """Of which arrays each partition has one block: users see them whole; None: partitions are
    given what the caller says, and give each their own."""
    hosts: int = 0
    """That feed as many replicas each, in their order, from queues of their own.

    0: it is not said; one host feeds all, over as many lines as they have.
    """
    keys: tuple[int, ...] = ()
    """Users' numbers of state and loaded parameters that are keys of random numbers, into which a
    session folds the number of each replica (`kernels.replica_keys`)."""

    def __repr__(self) -> str:
        """Return name and size, not the steps."""
        return (
            f"<Program {self.name[:_LONGEST_NAME]!r} for {self.machine[:_LONGEST_NAME]!r}: "
            f"{self.ipus} IPUs x {self.replicas} replicas, {len(self.variables):,} variables>"
        )

    @property
    def participants(self) -> int:
        """Who meets at collectives, numbered replica * partitions + partition."""
        return self.replicas * self.partitions

    @property
    def has_hosts(self) -> bool:
        """Whether its hosts have equally many replicas."""
        return self.hosts == 0 or (self.hosts > 0 and self.replicas % self.hosts == 0)

    @property
    def has_places(self) -> bool:
        """Whether every IPU of every participant has a place of its own in the system."""
        if not self.places:
            return self.system_ipus == 0
        return (
            len(self.places) == len(set(self.places)) == self.ipus * self.participants
            and min(self.places) >= 0
            and max(self.places) < self.system_ipus
        )

    def with_sequences(self, changed: Callable[[Sequence], Sequence]) -> "Program":
        """Return the program with its body and functions changed; the same if none is."""
        body = changed(self.body)
        functions = {name: changed(function) for name, function in self.functions.items()}
        if body is self.body and all(functions[n] is f for n, f in self.functions.items()):
            return self
        return replace(self, body=body, functions=functions)

    def place(self, ipu: int, participant: int = 0) -> int:
        """Return where an IPU of a participant is in the system."""
        number = participant * self.ipus + ipu
        return self.places[number] if self.places else number

    @property
    def is_resident(self) -> bool:
        """Whether it is made for a session: it keeps state, or queues feed it."""
        return bool(self.state or self.queues)
