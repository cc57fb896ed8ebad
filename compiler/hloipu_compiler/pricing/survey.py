"""What a step takes that is looked at as one stage: cycles of its ops, and arrays on the tiles.

A survey has *points*, the moments of a micro-batch in order, each belonging to an op of the entry,
and *arrays*, each of which is touched at some of these points. From that follows what any way to
cut the step takes (`stage_memory`), without compiling it.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.pricing.op_prices import ELEMENTWISE, FREE, OpPrice, kept_copies, source_of
from hloipu_compiler.staging.loads import size_of
from hloipu_compiler.staging.phases import BACKWARD, FORWARD, Phases

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Codes:
    """The code of vertices, each once, and which ops run it."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.sizes: list[float] = []
        self.uses: set[tuple[int, int]] = set()

    def add(self, key: Hashable, size: float, op: int) -> None:
        """Note that an op runs a code."""
        number = self.numbers.setdefault(key, len(self.sizes))
        if number == len(self.sizes):
            self.sizes.append(size)
        self.uses.add((number, op))

    def arrays(self) -> tuple[Floats, Numbers, Numbers]:
        """Return sizes, and uses as codes and ops."""
        uses = np.array(sorted(self.uses), np.int64).reshape(-1, 2)
        return np.array(self.sizes), uses[:, 0], uses[:, 1]


@dataclass(frozen=True)
class Survey:
    """One step on one machine; bytes are of all tiles of an IPU together, but for code."""

    cycles: Sequence[float]
    """Of each op of the entry, for each micro-batch; without the host."""
    update_cycles: float
    """Of what is done once for each update, without remote memory."""
    point_op: Numbers
    """The op of each point, ascending points."""
    array_bytes: Numbers
    is_value: NDArray[np.bool_]
    """Of each array: whether it holds what an op made, not a copy that lies otherwise."""
    touched: Numbers
    """Arrays by touch, ..."""
    touched_at: Numbers
    """... and points; sorted by array, then by point."""
    kept_bytes: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Of arrays that are there through all micro-batches and are no state: copies of weights."""
    kept: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Kept arrays by touch, ..."""
    kept_op: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """... and ops."""
    update_bytes: float = 0.0
    """Most bytes that the update makes."""
    op_code: Sequence[float] = ()
    """Bytes of code on a tile for each op."""
    code_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    """Of the code of vertices, which ops share, on a tile."""
    code: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Codes by use, ..."""
    code_op: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """... and ops."""
    stack_bytes: int = 0
    """On a tile."""


def survey_of_kinds(
    entry: Computation, phases: Phases, prices: Sequence[OpPrice], stack_bytes: int
) -> Survey:
    """Return a survey of an entry's ops, each priced by itself.

    Values that elementwise ops hand to one elementwise op alone are taken to be made within it.
    """
    points: list[int] = []
    touched: list[tuple[int, int]] = []
    sizes: list[int] = []
    values: list[bool] = []
    array_of: dict[int, int] = {}
    for position, x in enumerate(entry.instructions):
        if phases.phase[position] not in (FORWARD, BACKWARD) or x.opcode in FREE - {"reshape"}:
            continue
        here = len(points)
        points.append(position)
        for i in x.operands:
            source = source_of(entry, i)
            if source in array_of:
                touched.append((array_of[source], here))
        work = _work_bytes(entry, position, prices[position])
        if work:
            touched.append((len(sizes), here))
            sizes.append(work)
            values.append(False)
        if _is_made(entry, position):
            array_of[position] = len(sizes)
            touched.append((len(sizes), here))
            sizes.append(size_of(x.shape))
            values.append(True)
    touched.sort()
    both = np.array(touched, np.int64).reshape(-1, 2)
    update = [
        position for position, phase in enumerate(phases.phase) if phase not in (FORWARD, BACKWARD)
    ]
    copies = kept_copies(entry, prices)
    kept = [
        (n, op)
        for n, ops in enumerate(copies.values())
        for op in ops
        if phases.phase[op] in (FORWARD, BACKWARD)
    ]
    kept_at = np.array(kept, np.int64).reshape(-1, 2)
    codes = Codes()
    for position in points:
        for key, size in prices[position].vertex_code.items():
            codes.add(key, size, position)
    sizes_of_code, code, code_op = codes.arrays()
    return Survey(
        [price.cycles for price in prices],
        sum(prices[n].cycles for n in update),
        np.array(points, np.int64),
        np.array(sizes, np.int64),
        np.array(values, np.bool_),
        both[:, 0],
        both[:, 1],
        kept_bytes=np.array([size for _, size in copies], np.int64),
        kept=kept_at[:, 0],
        kept_op=kept_at[:, 1],
        update_bytes=float(max((prices[n].work_bytes for n in update), default=0)),
        op_code=[float(price.code_bytes) for price in prices],
        code_bytes=sizes_of_code,
        code=code,
        code_op=code_op,
        stack_bytes=stack_bytes,
    )


def _work_bytes(entry: Computation, position: int, price: OpPrice) -> int:
    """Return what an op needs while it works, with copies of what it reads on more tiles."""
    found = price.work_bytes
    for i, size in zip(entry.instructions[position].operands, price.given_bytes, strict=False):
        if entry.instructions[source_of(entry, i)].parameter_number < 0:
            found += max(0, size - size_of(entry.instructions[i].shape))
    return found


def _is_made(entry: Computation, position: int) -> bool:
    """Whether an op leaves an array behind."""
    x = entry.instructions[position]
    if isinstance(x.shape, TupleShape) or x.opcode in ("reshape", "bitcast"):
        return False
    users = set(entry.users[position])
    if x.opcode in ELEMENTWISE and len(users) == 1:
        return entry.instructions[next(iter(users))].opcode not in ELEMENTWISE
    return bool(users)
