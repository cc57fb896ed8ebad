"""Values of computations under construction: positions, tuples, or deferred values."""

from dataclasses import dataclass
from typing import NamedTuple

from hloipu_compiler.ir.graph import Instruction


class TupleValue(NamedTuple):
    """A tuple of which only the parts are there."""

    parts: tuple["Value", ...]


class Token(NamedTuple):
    """A token, which orders effects."""


class Counter(NamedTuple):
    """Execution count of the enclosing computation; its user decides which one."""

    goes_into_stages: bool = False
    """Whether it counts for the stage that reads it."""


class Lazy(NamedTuple):
    """An op on counters and constants alone, written again at each place that reads it."""

    instruction: Instruction
    operands: tuple["Value", ...]


class Buffer(NamedTuple):
    """An accumulator before its last use, by the number of its creation."""

    number: int


class Sunk(NamedTuple):
    """The value of an accumulator after all micro-batches."""

    position: int
    name: str


class Late(NamedTuple):
    """A value that the update makes, while a micro-batch is written."""

    name: str


class Varying(NamedTuple):
    """A value that a micro-batch makes, while the update is written."""

    name: str


Value = int | TupleValue | Token | Counter | Lazy | Buffer | Sunk | Late | Varying


@dataclass(frozen=True, slots=True)
class Context:
    """Marks of ops by their place: phase, stage, branch, device."""

    phase: str = ""
    stage: int = -1
    branch: int = -1
    """Of a stage that runs on several devices at once."""
    device: int = -1
    """On which ops are that do not say so themselves, where devices are kept."""

    @property
    def marks(self) -> dict[str, str]:
        """The attributes of ops here."""
        marks = {"ipu_phase": self.phase} if self.phase else {}
        if self.branch >= 0:
            marks["ipu_branch"] = str(self.branch)
        return marks | ({"ipu_stage": str(self.stage)} if self.stage >= 0 else {})


OUTSIDE = Context()
