"""Cuts a step's stacked arrays into pieces: weights, gradients, optimizer state, caches.

    pieces:     p = f32[4,8] parameter(0)            p.rows.0 = f32[2,8] parameter(0)
                a = slice(p), slice={[0:2],[0:8]}    p.rows.2 = f32[2,8] parameter(1)
                b = slice(p), slice={[2:4],[0:8]}    a and b are these
                g = concatenate(da, db)              p.rows.0 - lr * da is result 0,
                new = p - lr * g is result 0         p.rows.2 - lr * db is result 1

What is computed for each piece is what was computed of its rows, bit by bit. Only reductions over
the rows themselves are done piece by piece and then put together, so that sums of floats may
differ in their last bits.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from hloipu_compiler.ir.attributes import Attributes, SliceRange
from hloipu_compiler.ir.graph import Computation, Instruction, Module, with_computation
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape, array_shape
from hloipu_compiler.partition.scans.pieces_choosing import Choice, Cut, Cuts, chosen
from hloipu_compiler.partition.scans.pieces_following import (
    WHOLE,
    combining,
    followed,
    narrowed,
    sliced_range,
)
from hloipu_compiler.partition.scans.pieces_numbers import (
    Numbers,
    numbers_of,
    renumbered_header,
    renumbered_request,
    renumbered_wrapping,
    stacks_of,
)
from hloipu_compiler.partition.training.marks import made_by_each
from hloipu_compiler.partition.training.reach import (
    dependants,
    parameter_positions,
    result_positions,
)
from hloipu_compiler.passes.eliminate_dead_code import dead_code_eliminated
from hloipu_compiler.passes.framework.attribute_edits import DESCRIBES_LEAVES, without
from hloipu_compiler.passes.framework.constant_values import constant_array
from hloipu_compiler.passes.framework.rewriting import Draft, with_operands
from hloipu_compiler.plan.entry_arrays import parameter_arrays
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_runtime.program.stacks import Stack

Range = tuple[int, int]
"""From and up to which row."""


def written(module: Module, choice: Choice) -> Computation:
    """Return the entry with pieces in place of what is cut.

    Parameters and results that are cut become several, one for each piece, in place of the one.
    """
    return _Writing(module, choice).computation()


class _Writing:
    """The new entry; `place` of old values that are whole there, `pieces` of ranges of rows."""

    def __init__(self, module: Module, choice: Choice) -> None:
        self.module = module
        self.entry = module.entry
        self.choice = choice
        self.draft = Draft(module, module.entry)
        self.place: list[int | None] = [None] * len(module.entry.instructions)
        self.pieces: dict[tuple[int, int, Range], int] = {}
        """Old position, axis and range -> new position."""
        self.begins: dict[str, list[int]] = {}
        """Of a concatenation: where its operands begin, and its end."""
        self.alike: dict[tuple[str, int], int] = {}
        """Name of an op of whose operands pieces read all, and rows -> new position."""

    def computation(self) -> Computation:
        numbers = self._numbers()
        for position, op in enumerate(self.entry.instructions):
            cut = self.choice.cut.get(position)
            if position == self.entry.root and op.opcode == "tuple":
                self._root(op)
            elif op.parameter_number >= 0:
                self._parameter(position, op, numbers[op.parameter_number])
            elif cut is not None:
                for rows in pairwise(cut.bounds):
                    self.pieces[position, cut.axis, rows] = self._piece(op, cut.axis, rows)
            else:
                self._plain(position, op)
        for position in range(len(self.entry.instructions)):
            self.draft.place.append(self._stand_in(position))
        return self.draft.finish()

    def _stand_in(self, position: int) -> int:
        """Return what stands for an old value where ops name those that come before them."""
        cut, whole = self.choice.cut.get(position), self.place[position]
        if whole is not None or cut is None:
            return self.whole(position)
        return self.pieces[position, cut.axis, (cut.bounds[-2], cut.bounds[-1])]

    # Old values

    def whole(self, position: int) -> int:
        at = self.place[position]
        if at is None:
            cut = self.choice.cut[position]
            at = self._joined(position, cut, (0, cut.bounds[-1]))
            self.place[position] = at
        return at

    def rows(self, position: int, axis: int, rows: Range) -> int:
        shape = self._shape(position)
        if rows == (0, shape.dimensions[axis]):
            return self.whole(position)
        key = (position, axis, rows)
        if key not in self.pieces:
            op, cut = self.entry.instructions[position], self.choice.cut.get(position)
            if cut is not None and cut.axis == axis:
                self.pieces[key] = self._joined(position, cut, rows)
            else:
                self.pieces[key] = self._sliced(op, self.whole(position), axis, rows)
        return self.pieces[key]

    def _joined(self, position: int, cut: Cut, rows: Range) -> int:
        """Return where a range of a cut value is: pieces, and parts of the first and last."""
        op, parts = self.entry.instructions[position], []
        place = bisect_right(cut.bounds, rows[0]) - 1
        while cut.bounds[place] < rows[1]:
            begin, end = cut.bounds[place], cut.bounds[place + 1]
            piece = self.pieces[position, cut.axis, (begin, end)]
            inside = max(rows[0], begin) - begin, min(rows[1], end) - begin
            if inside != (0, end - begin):
                piece = self._sliced(op, piece, cut.axis, inside)
            parts.append(piece)
            place += 1
            if place == len(cut.bounds) - 1:
                break
        return self._beside(op, cut.axis, parts)

    def _beside(self, like: Instruction, axis: int, parts: Sequence[int]) -> int:
        """Return where new values are side by side: in what they are all cut from, if any."""
        if len(parts) == 1:
            return parts[0]
        source = self._cut_from(axis, parts)
        if source is not None:
            return source
        shapes = [shape for i in parts if isinstance(shape := self.draft.shape(i), ArrayShape)]
        shape = _resized(shapes[0], axis, sum(each.dimensions[axis] for each in shapes))
        along = Attributes({"dimensions": (axis,)})
        return self.draft.add(like, "concatenate", shape, parts, along)

    def _cut_from(self, axis: int, parts: Sequence[int]) -> int | None:
        """Return the one array whose neighbouring slices these are, if they are all of it."""
        slices = [self.draft.made[i] for i in parts]
        if slices[0].opcode != "slice" or len({op.operands for op in slices}) != 1:
            return None
        (source,) = slices[0].operands
        whole = self.draft.shape(source)
        axes_and_ranges = [
            sliced_range(op, whole) for op in slices if isinstance(whole, ArrayShape)
        ]
        at = 0
        for each in axes_and_ranges:
            if each is None or each[0] != axis or each[1].start != at:
                return None
            at = each[1].limit
        return source if isinstance(whole, ArrayShape) and at == whole.dimensions[axis] else None

    def _sliced(self, like: Instruction, source: int, axis: int, rows: Range) -> int:
        shape = array_shape(self.draft.shape(source))
        given = [SliceRange(0, size) for size in shape.dimensions]
        given[axis] = SliceRange(*rows)
        part = _resized(shape, axis, rows[1] - rows[0])
        producer = self.draft.made[source]
        array = constant_array(producer) if producer.opcode == "constant" else None
        if array is not None:
            own = array[(slice(None),) * axis + (slice(*rows),)].copy()
            own.flags.writeable = False
            return self.draft.add(like, "constant", part, literal=Literal(array=own))
        return self.draft.add(like, "slice", part, (source,), Attributes({"slice": tuple(given)}))

    def _shape(self, position: int) -> ArrayShape:
        return array_shape(self.entry.instructions[position].shape)

    # New ones

    def _numbers(self) -> list[int]:
        """Return the new number of each parameter, or of its first piece."""
        counts = []
        for position in self.entry.parameters:
            several = position in self.choice.parameters
            counts.append(len(self.choice.cut[position].bounds) - 1 if several else 1)
        return [0, *accumulate(counts)]

    def _parameter(self, position: int, op: Instruction, number: int) -> None:
        if position not in self.choice.parameters:
            self.place[position] = self.draft.append(op._replace(parameter_number=number))
            return
        cut = self.choice.cut[position]
        kept = without(op.attributes, DESCRIBES_LEAVES)
        for n, rows in enumerate(pairwise(cut.bounds)):
            shape = _resized(self._shape(position), cut.axis, rows[1] - rows[0])
            name = self.draft.fresh_name(f"{op.name}.rows.{rows[0]}")
            piece = op._replace(
                name=name, shape=shape, attributes=kept, parameter_number=number + n,
                start=-1, end=-1,
            )  # fmt: skip
            self.pieces[position, cut.axis, rows] = self.draft.append(piece)

    def _piece(self, op: Instruction, axis: int, rows: Range) -> int:
        """Return where a piece of an op's result is, written now."""
        if op.opcode == "concatenate" and op.attributes.integers("dimensions") == (axis,):
            return self._of_concatenation(op, axis, rows)
        shapes = [self._shape(i) for i in op.operands]
        sliced = sliced_range(op, shapes[0]) if op.opcode == "slice" else None
        if sliced is not None and sliced[0] == axis:
            start = sliced[1].start
            return self.rows(op.operands[0], axis, (start + rows[0], start + rows[1]))
        places = followed(op, shapes, axis)
        if places is None or not isinstance(op.shape, ArrayShape):
            raise TypeError(f"{op.name} does not go by ranges of axis {axis}")
        whole = op.shape.dimensions[axis]
        operands = tuple(
            self.whole(i)
            if place == WHOLE
            else self.rows(i, place, _scaled(rows, whole, of, place))
            for i, of, place in zip(op.operands, shapes, places, strict=True)
        )
        size = rows[1] - rows[0]
        if set(places) <= {WHOLE} and (op.name, size) in self.alike:
            return self.alike[op.name, size]
        shape = _resized(op.shape, axis, size)
        attributes = without(narrowed(op, axis, size), DESCRIBES_LEAVES)
        name = self.draft.fresh_name(f"{op.name}.rows.{rows[0]}")
        piece = op._replace(
            name=name, shape=shape, operands=operands, attributes=attributes, start=-1, end=-1
        )
        self.alike[op.name, size] = self.draft.append(piece)
        return self.alike[op.name, size]

    def _of_concatenation(self, op: Instruction, axis: int, rows: Range) -> int:
        """Return rows of what stands side by side: those of one operand, or of several."""
        if op.name not in self.begins:
            sizes = (self._shape(i).dimensions[axis] for i in op.operands)
            self.begins[op.name] = [0, *accumulate(sizes)]
        begins, pieces = self.begins[op.name], []
        place = bisect_right(begins, rows[0]) - 1
        while place < len(op.operands) and begins[place] < rows[1]:
            first, end = begins[place], begins[place + 1]
            inside = max(rows[0], first) - first, min(rows[1], end) - first
            if inside[0] < inside[1]:
                pieces.append(self.rows(op.operands[place], axis, inside))
            place += 1
        return self._beside(op, axis, pieces)

    def _plain(self, position: int, op: Instruction) -> None:
        """Write an op whose result is whole; it may read pieces."""
        sliced = sliced_range(op, self._shape(op.operands[0])) if op.opcode == "slice" else None
        if sliced is not None:
            cut = self.choice.cut.get(op.operands[0])
            if cut is not None and sliced[0] == cut.axis:
                rows = (sliced[1].start, sliced[1].limit)
                self.place[position] = self.rows(op.operands[0], cut.axis, rows)
                return
        if op.opcode != "reduce" or not self._reduced(position, op):
            operands = tuple(self.whole(i) for i in op.operands)
            self.place[position] = self.draft.append(with_operands(op, operands))

    def _reduced(self, position: int, op: Instruction) -> bool:
        """Reduce pieces over the axis that they are cut along, and put the results together."""
        source = op.operands[0]
        cut = self.choice.cut.get(source)
        opcode = combining(self.module, op)
        if cut is None or opcode is None or cut.axis not in op.attributes.integers("dimensions"):
            return False
        begun = self.whole(op.operands[1])
        first = True
        total = -1
        for rows in pairwise(cut.bounds):
            init = begun if first else self._neutral(op, opcode, begun)
            if init is None:
                return False
            operands = (self.rows(source, cut.axis, rows), init)
            name = self.draft.fresh_name(f"{op.name}.rows.{rows[0]}")
            part = self.draft.append(with_operands(op, operands)._replace(name=name))
            total = part if first else self.draft.add(op, opcode, op.shape, (total, part))
            first = False
        self.place[position] = total
        return True

    def _neutral(self, op: Instruction, opcode: str, begun: int) -> int | None:
        """Return what reductions of all pieces but the first begin with, so that it counts once."""
        if opcode not in _NEUTRAL:
            return begun  # as often as one likes
        return self.draft.add(
            op, "constant", self.draft.shape(begun), literal=Literal(_NEUTRAL[opcode])
        )

    def _root(self, op: Instruction) -> None:
        """Write the result, cut ones as several."""
        operands: list[int] = []
        for number, i in enumerate(op.operands):
            cut = self.choice.results.get(number)
            if cut is not None:
                operands += [self.rows(i, cut.axis, rows) for rows in pairwise(cut.bounds)]
            else:
                operands.append(self.whole(i))
        shape = TupleShape(tuple(self.draft.shape(i) for i in operands))
        root = with_operands(op, tuple(operands))._replace(shape=shape)
        if len(operands) != len(op.operands):
            root = root._replace(attributes=without(op.attributes, DESCRIBES_LEAVES))
        self.place[self.entry.root] = self.draft.append(root)


_NEUTRAL = {"add": "0", "multiply": "1", "xor": "0"}


def _scaled(rows: Range, size: int, operand: ArrayShape, axis: int) -> Range:
    """Return the part of an operand's axis that is the same part as rows are of `size`."""
    own = operand.dimensions[axis]
    return rows[0] * own // size, rows[1] * own // size


def _resized(shape: ArrayShape, axis: int, size: int) -> ArrayShape:
    sizes = list(shape.dimensions)
    sizes[axis] = size
    return ArrayShape(shape.element_type, tuple(sizes), shape.layout)


@dataclass(frozen=True)
class InPieces:
    """A step in pieces, and what goes with its new numbers of parameters and results."""

    module: Module
    wrapping: Wrapping
    stacks: tuple[Stack, ...]
    """Arrays that users go on seeing whole."""
    numbers: Numbers | None
    """None: nothing became several, and numbers are what they were."""

    def request(self, request: PipelineRequest) -> PipelineRequest:
        """Return what is asked of the cut, by the new numbers."""
        return request if self.numbers is None else renumbered_request(request, self.numbers)


def step_in_pieces(module: Module, wrapping: Wrapping, cuts: Cuts | None = None) -> InPieces:
    """Return a flat step of which stacked arrays are pieces wherever slices cut them.

    `cuts`: names of the slices and concatenations of the entry that cut arrays, with the places
    where they do, or wherever their rows begin and end; None: all do.
    Whatever goes by the rows of such an array is done piece by piece, and its parameters, with
    their next values, and results become several, unless an op reads all of a parameter at once.
    Numbers in the wrapping are the new ones.
    """
    choice = chosen(module, wrapping, cuts)
    if not choice.cut:
        return InPieces(module, wrapping, (), None)
    step = _written(module, wrapping, choice)
    unlike = _results_of_unlike_pieces(step)
    if not unlike:
        return step
    results = {number: cut for number, cut in choice.results.items() if number not in unlike}
    return _written(module, wrapping, replace(choice, results=results))


def _results_of_unlike_pieces(step: InPieces) -> set[int]:
    """Return numbers in the whole step of results whose pieces do not all depend on data.

    Rows that no data decides come once in an update, the others with each micro-batch; only whole
    are they elements of one queue.
    """
    if step.numbers is None:
        return set()
    entry = step.module.entry
    parameters, results = parameter_positions(entry), result_positions(entry)
    fed = [at for feed in step.wrapping.feeds for n in feed.places for at in parameters[n]]
    varying = dependants(entry, [*fed, *made_by_each(entry)])
    state = {pair.result for pair in step.wrapping.state}
    unlike = set()
    for whole, pieces in enumerate(step.numbers.results):
        at = [results[n] for n in pieces if n not in state]
        if len({varying[position] for position in at if position is not None}) > 1:
            unlike.add(whole)
    return unlike


def _written(module: Module, wrapping: Wrapping, choice: Choice) -> InPieces:
    entry = written(module, choice)
    cut_module = dead_code_eliminated(with_computation(module, entry))
    if not choice.parameters and not choice.results:
        return InPieces(cut_module, wrapping, (), None)
    numbers = numbers_of(module.entry, choice)
    names = [array.name for array in parameter_arrays(module)]
    for pair in wrapping.state:
        names[pair.parameter] = pair.name
    stacks = stacks_of(module.entry, choice, numbers, names)
    cut_module = replace(cut_module, attributes=renumbered_header(cut_module, numbers))
    return InPieces(cut_module, renumbered_wrapping(wrapping, numbers, stacks), stacks, numbers)
