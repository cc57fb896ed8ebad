"""Prepares the numpy calls of a loop's turns: memory for its values, and views of that.

Calls and strides are those of the loop's generated Python text, and so are the bits. A loop for
which that is not sure raises Refused: its text runs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.straight import Straight, calls_on_arrays, copying
from hloipu_runtime.codelets.core.tensors import Bound
from hloipu_runtime.codelets.indexed.scatter import Scatter
from hloipu_runtime.kernels.contractions.dot import MatrixProduct, RoundedProduct
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.scatter import putting
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Array, Value
from hloipu_runtime.program.steps import Definition, Piece, ValueId
from hloipu_runtime.simulate.functional.known_values import is_known
from hloipu_runtime.simulate.functional.loop_turns import MOST_ELEMENTS
from hloipu_runtime.simulate.functional.nodes import Collapsed, KnownWindow, Node
from hloipu_runtime.simulate.functional.whole_tensors import Values, cuts_of, whole_block
from hloipu_runtime.simulate.run.pool import MemoryPool

MOST_BYTES = 1 << 20
"""Of what a loop begins with, which is copied; *assumed*."""


class Refused(Exception):
    """The loop cannot be prepared; its generated text is to run."""


class TurnCalls:
    """Values of a loop on memory of its own, and the calls that make them."""

    def __init__(self, table: Sequence[Value], first: Values) -> None:
        self.calls: list[Callable[[], object]] = []
        self.pool = MemoryPool()
        self.multiplies = False
        """Whether BLAS is to be told to use one thread."""
        self._table, self._first = table, first
        self._values = first.copy()
        self._pieces: dict[int, Array] = {}
        """The pool's, by the array that owns the memory."""
        self._holders: dict[int, int] = {}
        """How many values lie in a piece."""
        self._beginnings: set[int] = set()
        """Pieces that are written to as a run begins."""
        self._straights: dict[int, Straight | None] = {}
        self._bound: dict[int, Bound] = {}

    def require_at_most(self, calls: int) -> None:
        """Raise Refused where there are more calls."""
        if len(self.calls) > calls:
            raise Refused

    # ---- values in memory ------------------------------------------------------------------------
    def begin(self, value: ValueId, like: Array, *, is_carried: bool) -> Array:
        """Return memory for a value that the loop begins with, row-major.

        What turns hand on is laid so for the first turn; other values are to lie so.
        """
        is_laid = is_carried and like.size <= MOST_ELEMENTS
        if like.nbytes > MOST_BYTES or not (like.flags.c_contiguous or is_laid):
            raise Refused
        place = self._take(like.shape, like.dtype)
        self._put(value, place)
        self._holders[_owner(place)] += 1  # stays, to be written to
        self._beginnings.add(_owner(place))
        return place

    def array(self, value: ValueId) -> Array:
        """Return the array of a value."""
        return np.asarray(self._values[value])

    def _take(self, shape: Sizes, dtype: np.dtype[Any]) -> Array:
        size = prod(shape) * dtype.itemsize
        memory = self.pool.take(size)
        if _owner(memory) not in self._pieces:
            memory.fill(0)  # calls are tried on what is there
        self._pieces[_owner(memory)] = memory
        self._holders.setdefault(_owner(memory), 0)
        return memory[:size].view(dtype).reshape(shape)

    def _give_back(self, owner: int) -> None:
        if self._holders.get(owner) == 0:
            del self._holders[owner]
            self.pool.give_back(self._pieces[owner])

    def _put(self, value: ValueId, x: Any) -> None:
        """Let a value be an array, or what is decided of a turn."""
        if isinstance(x, np.ndarray):
            if not _is_in_order(x):
                raise Refused  # what is made of it would lie otherwise
            self._hold(x)
        before, self._values[value] = self._values[value], x
        self._dropped(before)

    def _hold(self, x: Array) -> None:
        if _owner(x) in self._holders:
            self._holders[_owner(x)] += 1

    def _drop(self, value: ValueId) -> None:
        if self._first[value] is None:
            before, self._values[value] = self._values[value], None
            self._dropped(before)

    def _dropped(self, x: Any) -> None:
        if isinstance(x, np.ndarray) and _owner(x) in self._holders:
            self._holders[_owner(x)] -= 1
            self._give_back(_owner(x))

    def hand_on(self, moves: Sequence[tuple[ValueId, ValueId]], left: Sequence[ValueId]) -> None:
        """Hand arrays on, all at once, and drop values."""
        handed = [self.array(origin) for origin, _ in moves]
        for x in handed:
            self._hold(x)
        for value in left:  # may be targets
            self._drop(value)
        for (_, target), x in zip(moves, handed, strict=True):
            self._put(target, x)
        for x in handed:
            self._dropped(x)

    # ---- nodes -----------------------------------------------------------------------------------
    def turn(self, body: Collapsed, targets: Sequence[int], decided: Sequence[Any]) -> None:
        """Write the calls of a turn, of which some values are decided."""
        for target, x in zip(targets, decided, strict=True):
            self._put(target, x)
        for node in body.nodes:
            if is_known(node, self._first):
                continue
            match node.what:
                case KnownWindow():
                    self._window(node.what, node)
                case Definition():
                    self._definition(node.what, node)
                case Codelet():
                    self._codelet(node.what, node)
                case _:
                    raise Refused
            for value in node.frees:
                self._drop(value)

    def _window(self, what: KnownWindow, node: Node) -> None:
        (written,), (data, *window) = node.writes, node.reads
        index = self._values[what.slot]
        if not window:
            self._put(written, self.array(data)[index])
            return
        out = self._begun(data, node, also_read=window)
        self.calls.append(copying(out[index], self.array(window[0])))
        self._put(written, out)

    def _definition(self, what: Definition, node: Node) -> None:
        if what.base is None and len(what.pieces) == 1:
            self._put(what.value, self._piece(what.pieces[0]))
            return
        value = self._table[what.value]
        if what.base is None:
            out = self._take(value.shape, storage_dtype(value.element_type))
        else:
            out = self._begun(what.base, node, also_read=[p.value for p in what.pieces])
        for piece in what.pieces:
            target = _at(cuts_of(piece)[1])
            self.calls.append(copying(out[target], self._piece(piece)))
        self._put(what.value, out)

    def _begun(self, data: ValueId, node: Node, also_read: Sequence[ValueId]) -> Array:
        """Return an array to put parts into: what it begins with, if nobody reads that after."""
        x = self.array(data)
        is_alone = self._holders.get(_owner(x)) == 1 + (_owner(x) in self._beginnings)
        if is_alone and data in node.frees and data not in also_read and x.flags.c_contiguous:
            return x
        out = self._take(x.shape, x.dtype)
        self.calls.append(copying(out, x))
        return out

    def _piece(self, piece: Piece) -> Array:
        source = self.array(piece.value)
        seen = source.reshape(piece.view)
        if not np.may_share_memory(seen, source):
            raise Refused
        part: Array = seen[_at(cuts_of(piece)[0])]
        return part

    def _codelet(self, what: Codelet, node: Node) -> None:
        operands = [self.array(v) for v in node.reads]
        straight = self._straight(what, node)
        if isinstance(what, Scatter) and straight is not None:
            data, places, update = node.reads
            into = putting(
                straight.calls[0].function, *operands[1:], is_decided=self._is_decided(places)
            )
            if into is not None:
                out = self._begun(data, node, also_read=(places, update))
                self.calls.append(into(out))
                self._put(node.writes[0], out)
                return
        if straight is None or (
            straight.needs_row_major and not all(x.flags.c_contiguous for x in operands)
        ):
            self._whole(what, node, operands)
            return
        through = {call.number: call for call in straight.calls if call.is_view}
        origins: dict[int, Array] = {}
        scratch: list[Array] = []

        def take(shape: Sizes, dtype: np.dtype[Any]) -> Array:
            scratch.append(self._take(shape, dtype))
            self._hold(scratch[-1])
            return scratch[-1]

        shape_of = {call.number: call.shape for call in straight.calls}
        seen: list[tuple[int, list[Callable[..., Any]]]] = []
        for value, number in zip(node.writes, straight.results, strict=True):
            views: list[Callable[..., Any]] = []
            while number in through:
                views.append(through[number].function)
                number = through[number].arguments[0]
            seen.append((number, views))
            if number < len(operands):
                origins[number] = operands[number]
            elif number in straight.constants:
                origins[number] = straight.constants[number]
            elif number not in origins:
                kind = storage_dtype(self._table[value].element_type)
                origins[number] = take(shape_of[number], kind)
        made = [number for number in origins if number in shape_of]
        wanted = straight._replace(results=tuple(made))
        self.calls += calls_on_arrays(wanted, operands, [origins[n] for n in made], take)
        for value, (number, views) in zip(node.writes, seen, strict=True):
            x = origins[number]
            for view in reversed(views):
                x, before = np.asarray(view(x)), x
                if not np.may_share_memory(x, before):
                    raise Refused  # copied in each run
            self._put(value, x)
        for x in scratch:
            self._dropped(x)

    def _is_decided(self, value: ValueId) -> bool:
        """Whether a value is the same in each run."""
        return _owner(self.array(value)) not in self._holders

    def _straight(self, what: Codelet, node: Node) -> Straight | None:
        if id(node) not in self._straights:
            straight = what.straight(*self._blocks(node))
            if straight is not None and len(straight.calls) == 1:
                (call,) = straight.calls
                if isinstance(call.function, MatrixProduct | RoundedProduct):
                    self.multiplies = True
                    call = call._replace(on_arrays=call.function.on_one_thread)
                    straight = straight._replace(calls=(call,))
            self._straights[id(node)] = straight
        return self._straights[id(node)]

    def _blocks(self, node: Node) -> tuple[list[Any], list[Any]]:
        shapes = [[self._table[v].shape for v in values] for values in (node.reads, node.writes)]
        reads, writes = ([whole_block(shape) for shape in some] for some in shapes)
        return reads, writes

    def _whole(self, what: Codelet, node: Node, operands: Sequence[Array]) -> None:
        """Call a codelet as a whole, whose results are copied to their places."""
        if what.overwrites_a_part:
            raise Refused
        places = [
            self._take(self._table[v].shape, storage_dtype(self._table[v].element_type))
            for v in node.writes
        ]
        for value, place in zip(node.writes, places, strict=True):
            self._put(value, place)
        made = what.on_arrays(
            *(
                [block._replace(array=x) for block, x in zip(blocks, arrays, strict=True)]
                for blocks, arrays in zip(self._blocks(node), (operands, places), strict=True)
            )
        )
        if made is not None:
            self.calls.append(made.run)
            return
        if id(node) not in self._bound:
            self._bound[id(node)] = what.bound(*self._blocks(node))
        run = self._bound[id(node)]
        for x in run(operands, places):
            if not x.flags.c_contiguous or any(np.may_share_memory(x, y) for y in operands):
                raise Refused  # the text would hand it on as it lies
        self.calls.append(partial(_copy_results, places, partial(run, operands, places)))


def _copy_results(places: Sequence[Array], compute: Callable[[], Sequence[Array]]) -> None:
    for place, x in zip(places, compute(), strict=True):
        if x is not place:
            place[...] = x


def _at(cut: Sequence[slice]) -> Any:
    """Return the index of a view: without dimensions too, where numpy would return a number."""
    return (*cut, ...)


def _owner(x: Array) -> int:
    """Return which array owns the memory."""
    return id(x if x.base is None else x.base)


def _is_in_order(x: Array) -> bool:
    """Whether axes follow each other as in row-major arrays, of which parts may be left out."""
    strides = [s for n, s in zip(x.shape, x.strides, strict=True) if n > 1]
    return all(a >= b for a, b in pairwise(strides))
