"""Nodes of the logical form of a program."""

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.collective import Collective
from hloipu_runtime.program.steps import (
    Call,
    Definition,
    If,
    Repeat,
    RepeatWhile,
    StreamIn,
    StreamOut,
    Switch,
    ValueId,
)

What = (
    Codelet
    | Definition
    | StreamIn
    | StreamOut
    | Collective
    | Repeat
    | RepeatWhile
    | If
    | Switch
    | Call
)


@dataclass(frozen=True)
class Node:
    """One step of the logical form."""

    what: What
    place: str
    reads: tuple[ValueId, ...]
    writes: tuple[ValueId, ...]
    frees: tuple[ValueId, ...] = ()
    """Values of this block that are read here for the last time."""
    blocks: tuple["Collapsed", ...] = ()
    block_values: tuple[tuple[ValueId, ...], ...] = ()
    """Of branches: what each leaves behind. Of loops: what an iteration leaves for the next one."""


@dataclass(frozen=True)
class Collapsed:
    """The nodes of one sequence."""

    nodes: tuple[Node, ...]
    outside: frozenset[ValueId]
    """Values of enclosing blocks that are read here or deeper."""
