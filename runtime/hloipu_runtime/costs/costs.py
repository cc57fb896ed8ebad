"""Cost records: steps, and the blocks of steps that run as one."""

from collections.abc import Sequence
from typing import NamedTuple

from hloipu_runtime.costs.spent import Spent
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.charges import Charge
from hloipu_runtime.machine.links import NO_LINK_CYCLES, LinkCycles
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Pipeline, Step
from hloipu_runtime.program.timetable import Pattern, longest_iterations

BlockNumber = int


class StepCost(NamedTuple):
    """What one execution of a step costs."""

    path: str
    """Place in the tree, as the verifier names it."""
    kind: str
    """compute, exchange, sync, stream in or out, remote in or out, host call, call, repeat, while,
    if, switch, slots, or the kind of a collective."""
    codelets: str
    spent: Spent
    shares: tuple[tuple[str, Charge], ...]
    """Instructions that the slowest tile works for, and their part; they add up to the total."""
    tiles: int = 0
    """That take part."""
    ipus: tuple[int, ...] = ()
    moved_bytes: int = 0
    """Between tiles, IPUs or host and device, each byte once."""
    one_tile_bytes: int = 0
    """Most bytes that a vertex takes in that has no others beside it on other tiles."""
    step: Step | None = None
    """What it is the cost of: where reports begin that look at it more closely."""
    links: LinkCycles = NO_LINK_CYCLES
    """Cycles of what collectives, exchanges and slots' ends send between IPUs, by kind of link."""


class Loop(NamedTuple):
    """A body that runs a known number of times."""

    path: str
    name: str
    iterations: int
    body: BlockNumber


class DataLoop(NamedTuple):
    """A body that runs as often as its condition says; the condition runs once more."""

    path: str
    name: str
    condition: BlockNumber
    body: BlockNumber


class Choice(NamedTuple):
    """Branches of which data chooses one."""

    path: str
    name: str
    branches: tuple[BlockNumber, ...]


class Together(NamedTuple):
    """Branches that run at the same time, on IPUs of their own."""

    path: str
    branches: tuple[BlockNumber, ...]


class Apart(NamedTuple):
    """What tiles set apart do while a position works: they hand over, then transfer."""

    position: int
    """-1: the iteration of a loop."""
    chassis: int
    """Whose lines to the host are shared."""
    block: BlockNumber


class Pipelined(NamedTuple):
    """Bodies that work side by side on micro-batches, slot by slot; a slot lasts as the slowest."""

    path: str
    name: str
    iterations: int
    """Micro-batches, each of which goes through every body."""
    bodies: tuple[BlockNumber, ...]
    """By position."""
    ipus: tuple[tuple[int, ...], ...]
    """Of each position; those that share one take turns."""
    patterns: tuple[Pattern, ...]
    """Which positions work in so many slots."""
    step: Pipeline
    """What it is the cost of."""
    apart: tuple[Apart, ...] = ()
    """What goes on beside positions; in one chassis, one after the other."""

    def slowest(self, cycles: Sequence[float]) -> list[tuple[int, tuple[int, ...]]]:
        """Return for each pattern its slots, and the blocks of the longest iterations, by place.

        `cycles`: of one execution of each block inside.
        """
        places = [*self.ipus, *((~each.chassis,) for each in self.apart)]
        return [
            (
                pattern.slots,
                longest_iterations((*pattern.positions, *self.beside(pattern)), cycles, places),
            )
            for pattern in self.patterns
        ]

    def beside(self, pattern: Pattern) -> tuple[int, ...]:
        """Return the places, after those of positions, of what goes on beside some slots."""
        at_work = enumerate(self.apart, len(self.bodies))
        return tuple(place for place, each in at_work if each.position in pattern.positions)


class Called(NamedTuple):
    """A function's body."""

    body: BlockNumber


Inner = Loop | DataLoop | Choice | Together | Pipelined | Called


class BlockCost(NamedTuple):
    """Steps that always run together, without those of the blocks inside."""

    path: str
    spent: Spent
    """Sum over its own steps."""
    steps: tuple[int, ...]
    inner: tuple[Inner, ...]
    """In the order of the program. Their blocks have lower numbers than this one."""
    ipus: frozenset[int]
    """That take part here or inside."""


@dataclass(frozen=True)
class Costs:
    """The cost of every step of a program on a machine."""

    program: Program
    machine: Machine
    steps: tuple[StepCost, ...]
    blocks: tuple[BlockCost, ...]

    @property
    def root(self) -> BlockNumber:
        """The block of the program's body."""
        return len(self.blocks) - 1


def blocks_inside(inner: Inner) -> tuple[BlockNumber, ...]:
    """Return the blocks of a loop, choice, call or of branches that run together."""
    match inner:
        case Loop() | Called():
            return (inner.body,)
        case DataLoop():
            return (inner.condition, inner.body)
        case Choice() | Together():
            return inner.branches
        case Pipelined():
            return (*inner.bodies, *(each.block for each in inner.apart))
