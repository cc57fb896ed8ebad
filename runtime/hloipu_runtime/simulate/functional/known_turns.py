"""What the number of a turn decides in a counted loop: counters, and where windows begin.

Python computes it once for each turn, when that is first run, and later runs take it from there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.indexed.dynamic_slice import (
    DynamicSlice,
    DynamicUpdateSlice,
    window_at,
    with_ones,
)
from hloipu_runtime.program.program import Value
from hloipu_runtime.program.steps import Definition, Repeat, ValueId
from hloipu_runtime.simulate.functional.known_values import is_known
from hloipu_runtime.simulate.functional.nodes import Collapsed, KnownWindow, Node
from hloipu_runtime.simulate.functional.whole_tensors import Run, Values
from hloipu_runtime.simulate.run.host import Arrays, Counts

MOST_ELEMENTS_KEPT = 1 << 18
"""Of all turns of a loop; *assumed*."""


class _Window(NamedTuple):
    """A window whose starts are decided."""

    cut: Callable[[Sequence[Any]], tuple[slice, ...]]
    starts: tuple[ValueId, ...]


@dataclass
class KnownTurns:
    """What a loop's turns take, one after another."""

    body: Collapsed
    """What is left to do in a turn."""
    targets: tuple[int, ...]
    """Where what is decided goes: values, and slots of windows."""
    _count: int
    _before: Values
    _nodes: list[Run]
    _carried: list[tuple[ValueId, ValueId]]
    """Following values, and the turns' that they become."""
    _outs: list[ValueId]
    _windows: list[_Window]
    _kept: list[tuple[tuple[Any, ...], list[Any]]] = field(default_factory=list)
    """What goes to the targets, and what the turn carries on: together, as an interrupt may come
    at any time."""

    def turns(self) -> Iterator[tuple[Any, ...]]:
        """Return what goes to the targets, turn by turn."""
        if len(self._kept) == self._count:
            return map(itemgetter(0), self._kept)
        return self._making()

    def _making(self) -> Iterator[tuple[Any, ...]]:
        for turn in range(self._count):
            if turn == len(self._kept):
                self._kept.append(self._next())
            yield self._kept[turn][0]

    def _next(self) -> tuple[tuple[Any, ...], list[Any]]:
        values = self._before
        if self._kept:
            for (_, turn), value in zip(self._carried, self._kept[-1][1], strict=True):
                values[turn] = value
        for run in self._nodes:
            run(values, Arrays({}), Counts())
        outs = [values[v] for v in self._outs]
        outs += [window.cut([values[v] for v in window.starts]) for window in self._windows]
        return tuple(outs), [values[v] for v, _ in self._carried]


def known_turns(
    node: Node, table: Sequence[Value], first: Values, bind: Callable[[Node], Run]
) -> KnownTurns | None:
    """Return what turns decide in a counted loop, if anything; windows get slots behind `first`."""
    what, body = node.what, node.blocks[0]
    if not isinstance(what, Repeat):
        return None
    carried = {x.turn: x for x in what.carried if first[x.initial] is not None}
    decided, nodes = _decided(body.nodes, set(carried), table, first)
    while not all(_is_given(carried[t].following, decided, first) for t in carried):
        carried = {t: x for t, x in carried.items() if _is_given(x.following, decided, first)}
        decided, nodes = _decided(body.nodes, set(carried), table, first)
    sizes = sum(prod(table[v].shape) for n in nodes for v in n.writes)
    if not nodes or sizes * what.count > MOST_ELEMENTS_KEPT:
        return None
    left: list[Node] = []
    windows: list[_Window] = []
    slots: list[int] = []
    for inner in body.nodes:
        if any(inner is x for x in nodes):
            continue
        window = _window(inner, decided, table, first)
        if window is not None:
            slots.append(len(first))
            first.append(None)
            windows.append(window)
            reads = inner.reads[: len(inner.reads) - len(window.starts)]
            inner = replace(inner, what=KnownWindow(slots[-1]), reads=reads)
        left.append(inner)
    read = {v for inner in left for v in inner.reads} | {x.following for x in what.carried}
    outs = [v for n in nodes for v in n.writes if v in read]
    before = first.copy()
    for turn, item in carried.items():
        before[turn] = first[item.initial]
    return KnownTurns(
        replace(body, nodes=tuple(left)), (*outs, *slots), what.count, before,
        [bind(replace(n, frees=())) for n in nodes],
        [(x.following, t) for t, x in carried.items()], outs, windows,
    )  # fmt: skip


def _is_given(value: ValueId, decided: set[ValueId], first: Values) -> bool:
    return value in decided or first[value] is not None


def _decided(
    nodes: Sequence[Node], turns: set[ValueId], table: Sequence[Value], first: Values
) -> tuple[set[ValueId], list[Node]]:
    """Return the values that turns decide, and the nodes that make them."""
    decided, making = set(turns), []
    for node in nodes:
        if not isinstance(node.what, Codelet | Definition) or is_known(node, first):
            continue
        if all(_is_given(v, decided, first) for v in node.reads):
            decided.update(node.writes)
            making.append(node)
    return decided, making


def _window(
    node: Node, decided: set[ValueId], table: Sequence[Value], first: Values
) -> _Window | None:
    """Return the window that a slice takes, or an update replaces, where turns decide it."""
    if not isinstance(node.what, DynamicSlice | DynamicUpdateSlice):
        return None
    data, *rest = node.reads
    dropped = node.what.dropped
    if isinstance(node.what, DynamicSlice):
        shape, starts = with_ones(table[node.writes[0]].shape, dropped), rest
    elif data not in rest:
        shape, starts = with_ones(table[rest[0]].shape, dropped), rest[1:]
        if shape == table[data].shape:
            return None
    else:
        return None
    if not starts or not all(_is_given(v, decided, first) for v in starts):
        return None
    return _Window(window_at(table[data].shape, shape, dropped), tuple(starts))
