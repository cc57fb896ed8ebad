"""Nodes of the logical form of a program."""

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import Collective


@dataclass(frozen=True)
class KnownWindow:
    """Takes a window of the first value, or replaces it by the second one."""

    slot: int
    """Where the window's index stands among the values."""


What = (
    Codelet
    | KnownWindow
    | s.Definition
    | s.StreamIn
    | s.StreamOut
    | Collective
    | s.Repeat
    | s.RepeatWhile
    | s.If
    | s.Switch
    | s.Call
)


@dataclass(frozen=True)
class Node:
    """One step of the logical form."""

    what: What
    place: str
    reads: tuple[s.ValueId, ...]
    writes: tuple[s.ValueId, ...]
    frees: tuple[s.ValueId, ...] = ()
    """Values of this block that are read here for the last time."""
    blocks: tuple["Collapsed", ...] = ()
    block_values: tuple[tuple[s.ValueId, ...], ...] = ()
    """Of branches: what each leaves behind. Of loops: what an iteration leaves for the next one."""


@dataclass(frozen=True)
class Collapsed:
    """The nodes of one sequence."""

    nodes: tuple[Node, ...]
    outside: frozenset[s.ValueId]
    """Values of enclosing blocks that are read here or deeper."""
