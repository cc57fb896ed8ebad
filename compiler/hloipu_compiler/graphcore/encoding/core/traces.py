"""Dependences of a micro-batch's values, and records of its queues, sums and counters."""

from collections.abc import Sequence
from dataclasses import dataclass

from hloipu_compiler.graphcore.encoding.core.values import Context

FORWARD_PHASE, BACKWARD_PHASE, UPDATE_PHASE = "fwd", "bwd", "wu"


@dataclass(frozen=True, slots=True)
class Trace:
    """Parts of a micro-batch that a value depends on."""

    forward: int = -1
    """The last forward stage."""
    backward: int = -1
    """The backward stage that runs last; -1: none."""
    fed: bool = False
    """On a queue, or on what goes from one micro-batch to the next."""
    late: bool = False
    """On the update."""

    @property
    def varies(self) -> bool:
        """Whether it differs from one micro-batch to the next, as far as can be seen."""
        return self.forward >= 0 or self.backward >= 0 or self.fed


NONE = Trace()


def joined(traces: Sequence[Trace]) -> Trace:
    """Return the trace of what depends on several values."""
    backward = [trace.backward for trace in traces if trace.backward >= 0]
    return Trace(
        max((trace.forward for trace in traces), default=-1),
        min(backward, default=-1),
        any(trace.fed for trace in traces),
        any(trace.late for trace in traces),
    )


@dataclass(slots=True)
class Queue:
    """A queue with the positions of its arrays."""

    name: str
    positions: list[int]
    takes_last: bool = False
    late: bool = False


@dataclass(slots=True)
class Anchor:
    """The op that stands for the sum over micro-batches, and the forms of its operand."""

    position: int
    value: int
    bare: int
    share: int
    """A K-th of `bare`: of running means among sums; -1: not needed."""


@dataclass(slots=True)
class Count:
    """A counter that is state: its parameter, and its next value."""

    parameter: int
    next: int
    context: Context
