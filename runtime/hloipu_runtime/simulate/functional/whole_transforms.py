"""Puts the steps of a long Fourier transform together: on whole tensors it is one transform.

`codelets/dense/fft.py` says how a dimension that is too long for a tile is transformed in two
steps. Of real values a program then transforms complex ones, and leaves half of the result; to real
ones it transforms the doubled frequencies, and leaves the real part. One transform, of real values
where that will do, is the same up to rounding.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hloipu_runtime.codelets.core.constants import number_node
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.expression_form import Node as Op
from hloipu_runtime.codelets.dense.fft import Fft, Twiddle
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.move import Transpose
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Value
from hloipu_runtime.program.steps import Definition, ValueId
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.whole_sorts import seen_otherwise


def with_whole_transforms(
    nodes: list[Node], table: Sequence[Value], results: frozenset[ValueId]
) -> list[Node]:
    """Return the nodes of a block with the steps of each long transform as one node.

    `results` outlive the block.
    """
    steps = _Steps(nodes, table, results)
    joined: dict[int, Node] = {}
    dropped: set[int] = set()
    for n, node in enumerate(nodes):
        if isinstance(node.what, Twiddle):
            of_complex = steps.in_two(n, node.what)
            if of_complex is None:
                continue
            whole = steps.of_reals(of_complex) or steps.to_reals(of_complex) or of_complex
            last = whole.members[-1]
            dropped.update(whole.members)
            joined[last] = Node(whole.what, nodes[last].place, (whole.source,), (whole.result,))
    return [joined.get(n, node) for n, node in enumerate(nodes) if n not in dropped or n in joined]


class _Transform(NamedTuple):
    """A transform that steps of a block are together."""

    what: Fft
    source: ValueId
    result: ValueId
    members: tuple[int, ...]
    """Positions of the steps, the last one last."""


class _Steps:
    """The nodes of a block, by what they make and read."""

    def __init__(
        self, nodes: Sequence[Node], table: Sequence[Value], results: frozenset[ValueId]
    ) -> None:
        self._nodes, self._table, self._results = nodes, table, results
        self._maker = {v: n for n, node in enumerate(nodes) for v in node.writes}
        self._readers: dict[ValueId, list[int]] = {}
        for n, node in enumerate(nodes):
            for v in dict.fromkeys(node.reads):
                self._readers.setdefault(v, []).append(n)

    def _after(self, value: ValueId) -> int | None:
        """Return the only node that reads a value; None: there are more, or none."""
        readers = self._readers.get(value, [])
        return readers[0] if len(readers) == 1 and value not in self._results else None

    def _before(self, value: ValueId) -> int | None:
        """Return the node that makes a value, unless another than the one in question reads it."""
        return None if self._after(value) is None else self._maker.get(value)

    def in_two(self, number: int, twiddle: Twiddle) -> _Transform | None:
        """Return the transform that the steps around a twiddle are."""
        nodes, d = self._nodes, twiddle.dimensions[0]
        (turned,), (columns,) = nodes[number].writes, nodes[number].reads
        begin, end = self._before(columns), self._after(turned)
        if begin is None or end is None or len(nodes[begin].reads) != 1:
            return None
        (split,) = nodes[begin].reads
        swap, view = self._after(nodes[end].writes[0]), self._before(split)
        if swap is None or view is None or len(nodes[view].reads) != 1:
            return None
        joins = self._after(nodes[swap].writes[0])
        if joins is None:
            return None
        (source,), shape = nodes[view].reads, self._table[split].shape
        first, second = shape[d : d + 2]
        kind = "IFFT" if twiddle.inverse else "FFT"
        expected = (Fft(kind, d, first), Twiddle((d, d + 1), first * second, twiddle.inverse),
                    Fft(kind, d + 1, second), _swapped(d, len(shape)))  # fmt: skip
        if tuple(nodes[n].what for n in (begin, number, end, swap)) != expected:
            return None
        result = seen_otherwise(nodes[joins], nodes[swap].writes[0], self._table)
        whole = (*shape[:d], first * second, *shape[d + 2 :])
        if seen_otherwise(nodes[view], source, self._table) is None or result is None:
            return None
        if any(self._table[v].shape != whole for v in (source, result)):
            return None
        members = (view, begin, number, end, swap, joins)
        return _Transform(Fft(kind, d, first * second), source, result, members)

    def of_reals(self, transform: _Transform) -> _Transform | None:
        """Return the transform of real values that a complex one is."""
        widen, cut = self._before(transform.source), self._after(transform.result)
        if transform.what.kind != "FFT" or widen is None or cut is None:
            return None
        table, d, length = self._table, transform.what.dimension, transform.what.length
        reads, what = self._nodes[widen].reads, self._nodes[cut].what
        if len(reads) != 1 or not isinstance(what, Definition) or what.base is not None:
            return None
        (given,) = reads
        real, shape = table[given].element_type, table[transform.source].shape
        kept = (*shape[:d], length // 2 + 1, *shape[d + 1 :])
        nodes = (number_node(0, real), Op("complex", (0, 1), table[transform.source].element_type))
        boxes = [(x.view, x.box, any(x.shift)) for x in what.pieces]
        if self._nodes[widen].what != _elementwise((real,), nodes, len(shape)):
            return None
        if table[what.value].shape != kept or boxes != [(shape, _box(kept), False)]:
            return None
        members = (widen, *transform.members, cut)
        return _Transform(Fft("RFFT", d, length), given, what.value, members)

    def to_reals(self, transform: _Transform) -> _Transform | None:
        """Return the transform to real values that a complex one is."""
        join, narrow = self._before(transform.source), self._after(transform.result)
        if transform.what.kind != "IFFT" or join is None or narrow is None:
            return None
        table, d, length = self._table, transform.what.dimension, transform.what.length
        what, shape = self._nodes[join].what, table[transform.source].shape
        if not isinstance(what, Definition) or what.base is None or len(what.pieces) < 2:
            return None
        given, twice = (x.value for x in what.pieces[:2])
        kind, (left,) = table[given].element_type, self._nodes[narrow].writes
        zeros, double = self._maker.get(what.base), self._before(twice)
        if zeros is None or double is None or self._nodes[double].reads != (given,):
            return None
        real, rank, middle = table[left].element_type, len(shape), (length + 1) // 2
        ops = (number_node(0, real), Op("complex", (0, 0), kind))
        expected = (
            Elementwise(Expression((), ops, (1,)), (), rank),
            _elementwise((kind,), (Op("add", (0, 0), kind),), rank),
            _elementwise((kind,), (Op("real", (0,), real),), rank),
        )
        ranges = [(given, 0, 1), (twice, 1, middle), (given, middle, length // 2 + 1)]
        half = (*shape[:d], length // 2 + 1, *shape[d + 1 :])
        pieces = [
            (v, half, (*_box(shape[:d]), (low, high), *_box(shape[d + 1 :])), False)
            for v, low, high in ranges
            if low < high
        ]
        if tuple(self._nodes[n].what for n in (zeros, double, narrow)) != expected:
            return None
        if [(x.value, x.view, x.box, any(x.shift)) for x in what.pieces] != pieces:
            return None
        members = (double, join, *transform.members, narrow)
        if self._after(what.base) is not None:
            members = (zeros, *members)
        return _Transform(Fft("IRFFT", d, length), given, left, members)


def _elementwise(types: tuple[str, ...], ops: tuple[Op, ...], rank: int) -> Elementwise:
    return Elementwise(Expression(types, ops, (len(ops),)), (tuple(range(rank)),), rank)


def _swapped(d: int, rank: int) -> Transpose:
    return Transpose((*range(d), d + 1, d, *range(d + 2, rank)))


def _box(shape: Sizes) -> tuple[tuple[int, int], ...]:
    return tuple((0, n) for n in shape)
