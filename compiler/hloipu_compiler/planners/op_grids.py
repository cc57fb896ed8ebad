"""Planner of elementwise-like ops: the grid with the least exchange of operands and result.

Tried are the places of its operands, and where users prefer its result. Prices are those of the
exchanges that bring operands there and the result on to its users, and of the work itself.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from hloipu_compiler.planners.placing import Placement, followed
from hloipu_compiler.planners.redistribution import redistribution, together
from hloipu_runtime.codelets.core.codelet import Codelet, Indexing
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.exchange_price import NO_CODE_PRICE, CodePrice
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.descriptors import is_complete
from hloipu_runtime.program.mapping import Mapping, Sizes


class Demand(NamedTuple):
    """What one user of a value prefers."""

    born: Mapping
    """Where the value best lies: each element once."""
    need: Mapping
    """What the user's tiles read: of one slice, where a product is done in slices."""
    times: int
    """How often in each run of the computation."""
    user: str
    """Name of the instruction."""
    most: int = 1 << 62
    """Cycles that it costs to do without, each time."""
    price: Callable[[Mapping], int] | None = None
    """Cycles of the user where the value lies so, if it can work wherever that is."""

    def loss(self, lying: Mapping) -> int:
        """Return the cycles that it costs to work where the value lies, each time."""
        if self.price is None:
            return self.most
        return max(0, self.price(lying) - self.price(self.need))

    def seen(self, born: Mapping, need: Mapping) -> "Demand":
        """Return the demand on an array of other sizes, which has the same elements or more."""
        return self._replace(born=born, need=need, price=None)

    def place(self, shape: Sizes) -> Mapping:
        """Return where a value of this shape lies if it serves this user alone.

        That is where it is read, unless a slice is read that leaves elements on no tile.
        """
        return self.need if is_complete(self.need, shape) else self.born


def met_by(demands: Iterable[Demand], shape: Sizes) -> tuple[Demand, ...]:
    """Return the demands that a value of this shape can meet with each element on some tile.

    An op's intermediate values may have other sizes than its result, which the demands are on.
    """
    return tuple(
        demand
        for demand in demands
        if len(demand.born.spans) == len(shape) and is_complete(demand.born, shape)
    )


MOST_PREFERENCES = 2
"""Of users' places that are tried."""


def candidates(
    indexing: Indexing,
    lying: Sequence[Mapping],
    preferences: Sequence[Demand],
    least_tiles: int,
    element_counts: Sequence[int],
) -> list[Placement]:
    """Return placements on at least so many tiles, that of the largest operand first."""
    placements: dict[Placement, None] = {}
    order = sorted(range(len(lying)), key=lambda n: -element_counts[n])
    for number in order:
        placement = followed(indexing, indexing.operands[number], lying[number])
        if placement is not None and placement.tiles.count >= least_tiles:
            placements[placement] = None
    for preference in preferences[:MOST_PREFERENCES]:
        if len(preference.born.spans) == len(indexing.results[0]):
            placement = followed(indexing, indexing.results[0], preference.born)
            if placement is not None and placement.tiles.count >= least_tiles:
                placements[placement] = None
    return list(placements)


class MovableOp(NamedTuple):
    """An op that could run anywhere, its operands where they lie, and where users want results."""

    codelet: Codelet
    operands: tuple[tuple[Tensor, Mapping], ...]
    results: tuple[Tensor, ...]
    preferences: tuple[Demand, ...]
    iterations: int = 1
    """How often it runs; the code of its exchanges is there once."""
    code_price: CodePrice = NO_CODE_PRICE
    """What a byte of that is worth."""
    numbers: tuple[Tensor, ...] = ()
    """Operands behind the others that are constant, and cost nothing to bring."""


def cheapest(machine: Machine, op: MovableOp, placements: Iterable[Placement]) -> Placement:
    """Return the placement that costs least, the first of equals."""
    op = op._replace(preferences=met_by(op.preferences, op.results[0].shape))
    return min(placements, key=lambda x: _cost(machine, op, x))


@lru_cache(1 << 13)
def _cost(machine: Machine, op: MovableOp, placement: Placement) -> int:
    results = op.results
    indexing = op.codelet.indexing([*(tensor for tensor, _ in op.operands), *op.numbers], results)
    parts, moved = [], []
    for (tensor, lying), indices in zip(op.operands, indexing.operands, strict=False):
        spans = placement.spans(indices, tensor.shape)
        wanted = Mapping(placement.tiles, spans)
        kind, shape = tensor
        moved.append(redistribution(machine, kind, shape, lying, wanted, op.code_price))
        parts.append(_part(tensor, spans))
    parts += op.numbers
    operands = together(machine, moved)
    cycles, code = operands.cycles, operands.code_bytes
    result_parts = []
    for number, (tensor, indices) in enumerate(zip(results, indexing.results, strict=True)):
        spans = placement.spans(indices, tensor.shape)
        result_parts.append(_part(tensor, spans))
        if not number:
            lies = Mapping(placement.tiles, spans)
            for preference in op.preferences:
                kind, shape = tensor
                redistributed = redistribution(
                    machine, kind, shape, lies, preference.need, op.code_price
                )
                loss = preference.loss(lies)
                if redistributed.cycles > loss:
                    cycles += loss
                    continue
                cycles += redistributed.cycles
                code += redistributed.code_bytes
    cycles += op.codelet.work(machine, parts, result_parts).cycles
    return op.iterations * cycles + op.code_price.compared * code


def _part(tensor: Tensor, spans: Sequence[tuple[int, int, int, int]]) -> Tensor:
    sizes = tuple(min(span[3], n) for span, n in zip(spans, tensor.shape, strict=True))
    return Tensor(tensor.element_type, sizes)
