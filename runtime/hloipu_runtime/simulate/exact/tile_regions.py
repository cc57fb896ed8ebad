"""Writes steps on small tile memories as one compiled function.

A codelet on a grid of tiles is written as the same one on whole arrays with the grid's dimensions
in front, where its calls on the tiles do just that; see `functional/loop_writer.py`. Memories stay
where they are from run to run, and everything is read from them and written to them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.codelet import Block, Codelet
from hloipu_runtime.codelets.core.grids import pair
from hloipu_runtime.codelets.core.native_lowering import storage_type
from hloipu_runtime.codelets.dense.dot import Dot, folded_dot
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.fused_reduce import FusedReduce
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.codelets.ops.row_region import RowRegion
from hloipu_runtime.kernels.native.instructions import is_known_type
from hloipu_runtime.kernels.native.regions import Held, Memory, Place
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Array, Value
from hloipu_runtime.program.steps import ValueId
from hloipu_runtime.simulate.exact.vertices import same_in_each_run, straight_on_tiles
from hloipu_runtime.simulate.functional.loop_turns import MOST_ELEMENTS_MADE
from hloipu_runtime.simulate.functional.loop_writer import MOST_NODES, Written
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.region_products import RegionProducts
from hloipu_runtime.simulate.functional.region_reductions import RegionReductions
from hloipu_runtime.simulate.functional.region_values import Refused


class TileRegion(RegionReductions, RegionProducts):
    """Steps one after another; what cannot be told to have the bits of the calls is Refused."""

    def __init__(self) -> None:
        self._table: list[Value] = []
        super().__init__(self._table, [], [])
        self.memories: dict[int, Array] = {}
        """What the tiles' memories lie in, by the address of the array."""

    def written(self, memories: list[Array]) -> Written:
        """Return the text, and add to a list what it is given; raises Refused if it is too long."""
        if self.region.usual_nodes > MOST_NODES:
            raise Refused
        memories[:] = self.memories.values()
        names = tuple(f"%memory.{k}" for k in range(len(memories)))
        return Written(self.region, names, tuple(range(len(memories))), (), self.multiplies)

    def compute(
        self, codelet: Codelet, operands: Sequence[Block], results: Sequence[Block],
        types: Sequence[str],
    ) -> None:  # fmt: skip
        """Write a codelet on a class of tiles; `types` are those of all operands and results."""
        if not all(0 < x.data.size <= MOST_ELEMENTS_MADE for x in (*operands, *results)):
            raise Refused
        targets = [
            self.place(x.data, kind)
            for x, kind in zip(results, types[len(operands) :], strict=True)
        ]
        same = same_in_each_run(codelet, operands, results)
        made: list[Held]
        if same is not None:
            made = [self.place(x, types[-1]) for x in same]
        elif straight_on_tiles(codelet, operands, results) is None and not _by_body(codelet):
            raise Refused
        else:
            given = [
                self.place(x.data, kind)
                for x, kind in zip(operands, types[: len(operands)], strict=True)
            ]
            made = self._made(codelet, given, operands, results, types)
        for k, (held, target) in enumerate(zip(made, targets, strict=True)):
            if isinstance(held, Place) and held.view.shape != target.view.shape:
                made[k] = held.seen(held.view.reshape(target.view.shape, copy=False))
        self.put(made, targets)

    def put(self, made: Sequence[Held], targets: Sequence[Place]) -> None:
        """Write arrays to memories; what lies in one of those is set aside first."""
        sources = list(made)
        for k, held in enumerate(made):
            if isinstance(held, Place) and any(
                held.memory.stand_in is x.memory.stand_in and np.may_share_memory(held.view, x.view)
                for x in targets
            ):
                aside = self.region.temporary(held.view.shape, held.type)
                self.region.copy(held, aside)
                sources[k] = aside
        for source, target in zip(sources, targets, strict=True):
            self.region.copy(source, target)

    def place(self, array: Array, element_type: str) -> Place:
        """Return an array in a tile memory."""
        kind = storage_type(element_type)
        if not is_known_type(kind):
            raise Refused
        root = _owner(array)
        self.memories.setdefault(id(root), root)
        name = f"%memory.{list(self.memories).index(id(root))}"
        return Place(Memory(name, 0, root), array, kind)

    def _made(
        self, codelet: Codelet, given: list[Place], operands: Sequence[Block],
        results: Sequence[Block], types: Sequence[str],
    ) -> list[Held]:  # fmt: skip
        axes = len(results[0].grid)
        shape = results[0].data.shape
        match codelet:
            case Elementwise():
                labels = _behind(axes, codelet.labels)
                arranged = [
                    self._arranged(x, own, axes + codelet.rank)
                    for x, own in zip(given, labels, strict=True)
                ]
                return self._expression(codelet.expression, arranged, shape)
            case Dot(part=0):
                return [self._product_on_tiles(codelet, given, operands, results[0])]
            case Reduce(parts=()):
                node = self._node_of(given, types, len(results), inits=len(results))
                lifted = replace(codelet, dimensions=_shifted(axes, codelet.dimensions))
                return self._reduce(lifted, node)
            case FusedReduce(parts=()):
                node = self._node_of(given, types, len(results), inits=len(results))
                return self._fused(_lifted(codelet, axes), node)
            case RowRegion():
                return self._rows(_lifted(codelet, axes), self._node_of(given, types, 0))
        raise Refused

    def _node_of(
        self, given: list[Place], types: Sequence[str], results: int, *, inits: int = 0
    ) -> Node:
        """Return operands as the values of a node; the last ones are inits of a reduction."""
        reads = []
        for k, (place, kind) in enumerate(zip(given, types, strict=False)):
            if k >= len(given) - inits:
                if any(n > 1 and step for n, step in zip(place.view.shape, place.view.strides)):
                    raise Refused
                place = place.seen(place.view[(*(0 for _ in place.view.shape), ...)])
            else:
                place = self.region.row_major(place)
            reads.append(self._new_value(kind, place.view.shape))
            self.held[reads[-1]] = place
        writes = tuple(self._new_value(kind, ()) for kind in types[len(types) - results :])
        return Node(None, "", tuple(reads), writes if results else ())  # type: ignore[arg-type]

    def _new_value(self, kind: str, shape: Sizes) -> ValueId:
        self._table.append(Value(kind, shape))
        return len(self._table) - 1

    def _product_on_tiles(
        self, dot: Dot, given: Sequence[Place], operands: Sequence[Block], result: Block
    ) -> Held:
        """Multiply as `Dot.straight_on_grid` does."""
        lhs, rhs = operands
        taken = pair(lhs, rhs)
        folded = folded_dot(dot, taken.varies, len(lhs.part), len(rhs.part))
        left, right = given[0].seen(taken.lhs), given[1].seen(taken.rhs)
        product = self._arranged_product(left, right, folded.dimensions)
        product = self._rounded(product, dot.element_type)
        places: tuple[Any, ...] = tuple(slice(None) if any(both) else None for both in taken.varies)
        view = product.view.transpose(folded.order)[places]
        return product.seen(np.broadcast_to(view, result.data.shape))


def _by_body(codelet: Codelet) -> bool:
    """Whether it reduces by a body, in the order of its dimensions however tiles' parts lie."""
    return isinstance(codelet, Reduce) and not codelet.monoid


def _shifted(axes: int, dimensions: Sequence[int]) -> Sizes:
    return tuple(axes + d for d in dimensions)


def _behind(axes: int, labels: Sequence[Sequence[int]]) -> tuple[Sizes, ...]:
    return tuple((*range(axes), *_shifted(axes, own)) for own in labels)


def _lifted(codelet: Any, axes: int) -> Any:
    """Return a fused reduction or a region of rows with grid axes in front."""
    return replace(
        codelet,
        labels=_behind(axes, codelet.labels),
        rank=axes + codelet.rank,
        dimensions=_shifted(axes, codelet.dimensions),
    )


def _owner(array: Array) -> Array:
    """Return the array in whose memory another one lies."""
    owner: Any = array
    while True:
        base = getattr(owner, "base", None)
        if base is None:
            break
        owner = base
    if not isinstance(owner, np.ndarray):
        raise Refused
    return owner
