"""Per-participant numbers known at compile time: ids, and table entries they select.

Programs of one device find their own blocks so:

    me = partition-id()    at = dynamic-slice(table, me)    own = dynamic-slice(whole, at, 0)

Each IPU has a program of its own, whose part of an array is one that it names: there nothing is
looked up, and no index is data.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from hloipu_compiler.hlo.literals.values import ElidedConstantError
from hloipu_compiler.interpret.planning.constants import constant_leaves
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape, array_shape
from hloipu_compiler.memo import Memo, Same
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.program import Array

_HANDING_ON = frozenset("reshape bitcast copy".split())
_COMBINING = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}

Starts = tuple[tuple[int, ...], ...]
"""For each participant where its part of an array begins, by dimensions."""


@dataclass(frozen=True, slots=True)
class OwnNumbers:
    """Numbers known to participants in one computation, by position."""

    numbers: Mapping[int, Array]
    """Of single integers, other than the place itself, that somebody reads: each participant's."""
    parts: Mapping[int, Starts]
    """Of dynamic slices at such numbers."""
    unread: frozenset[int]
    """What nothing but these reads."""

    def opcode(self, position: int) -> str:
        """Return what an instruction is written as; empty: as what it is."""
        if position in self.parts:
            return "own-part"
        return "own-number" if position in self.numbers else ""


def own_numbers(computation: Computation, replicas: int, partitions: int) -> OwnNumbers:
    """Return what each of the participants knows, who are replica * partitions + partition."""
    key = Same(computation), replicas, partitions
    return OWN_NUMBERS_MEMO.of(key, lambda: _looked_through(computation, replicas, partitions))


OWN_NUMBERS_MEMO: Memo[OwnNumbers] = Memo(64)
"""Of computations, which layout and lowering ask for in turn, and again in each trial."""


def _looked_through(computation: Computation, replicas: int, partitions: int) -> OwnNumbers:
    ops = computation.instructions
    everyone = np.arange(replicas * partitions)
    places = {"partition-id": everyone % partitions, "replica-id": everyone // partitions}
    known: dict[int, Array] = {}
    """Single integers of all participants; of constants the one number, or row, of everyone."""
    parts: dict[int, Starts] = {}
    for position, op in enumerate(ops):
        operands = [known[i] for i in op.operands if i in known]
        all_known = len(operands) == len(op.operands)
        if op.opcode in places:
            known[position] = places[op.opcode].astype(np.uint32)
        elif op.opcode == "constant":
            value = _integers(op)
            if value is not None:
                known[position] = value
        elif op.opcode == "dynamic-slice" and all(i in known for i in op.operands[1:]):
            start_operands = operands[1:] if all_known else operands
            starts = _starts(computation, op, start_operands, len(everyone))
            is_row = ops[op.operands[0]].opcode == "constant"
            if starts and all_known and is_row and len(starts[0]) == 1 and _is_single(op):
                known[position] = operands[0][[at for (at,) in starts]]
            elif any(a != b for a, b in pairwise(starts)):
                parts[position] = starts
        elif operands and all_known and _is_single(op):
            if op.opcode in _HANDING_ON:
                known[position] = operands[0]
            elif op.opcode in _COMBINING:
                with np.errstate(over="ignore"):
                    known[position] = _COMBINING[op.opcode](*operands)
    participant_values = {i for i in known if ops[i].opcode != "constant"}
    read_positions = {
        i
        for position, op in enumerate(ops)
        for number, i in enumerate(op.operands)
        if position not in participant_values and not (position in parts and number)
    }
    read_positions.add(computation.root)
    unread = frozenset(i for i in known if i not in read_positions)
    numbers = {
        i: np.broadcast_to(known[i], everyone.shape)
        for i in participant_values & read_positions
        if ops[i].opcode not in places
    }
    return OwnNumbers(numbers, parts, unread)


def _is_single(op: Instruction) -> bool:
    return isinstance(op.shape, ArrayShape) and op.shape.element_count == 1


def _integers(op: Instruction) -> Array | None:
    """Return a constant of whole numbers, a single one as a row of one; None for all others."""
    shape = op.shape
    if not isinstance(shape, ArrayShape) or len(shape.dimensions) > 1:
        return None
    kind = shape.element_type
    if not kind.is_integer or kind.bits < 8 or shape.element_count > _MOST_ROWS:
        return None
    try:
        (array,) = constant_leaves(op)
    except ElidedConstantError:
        return None
    return np.asarray(array).reshape(-1)


_MOST_ROWS = 2**16
"""Of a table that is looked through: more than there are participants in any system."""


def _starts(
    computation: Computation, op: Instruction, start_operands: Sequence[Array], count: int
) -> Starts:
    """Return where a dynamic slice begins for each participant, within bounds; empty: unknown."""
    source = array_shape(computation.instructions[op.operands[0]].shape)
    assert isinstance(op.shape, ArrayShape)
    if len(start_operands) != len(source.dimensions):
        return ()  # as dumps before 2019 have them: one vector
    columns = []
    for start, n, size in zip(start_operands, source.dimensions, op.shape.dimensions, strict=True):
        if start.shape not in ((1,), (count,)):
            return ()
        # In the numbers' own type: beyond 2**63 an unsigned one would come out negative.
        least_last = np.minimum(start, start.dtype.type(min(n - size, np.iinfo(start.dtype).max)))
        within = np.maximum(least_last.astype(np.int64), 0)
        columns.append(np.broadcast_to(within, (count,)).tolist())
    return tuple(zip(*columns, strict=True))
