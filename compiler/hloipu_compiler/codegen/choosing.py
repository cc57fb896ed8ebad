"""Choosing where an op runs that could run anywhere: where moving its operands and result is least.

Tried are the places of its operands, and where users wish its result. Prices are those of the
exchanges that bring operands there and the result on to its users, and of the work itself.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from hloipu_compiler.codegen.bringing import STAYING, bringing
from hloipu_compiler.codegen.layout import Demand
from hloipu_compiler.codegen.placing import Placement, followed
from hloipu_runtime.codelets.codelet import Codelet, Indexing, Tensor
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping

MOST_WISHES = 2
"""Of users' places that are tried."""


def candidates(
    indexing: Indexing,
    lying: Sequence[Mapping],
    wishes: Sequence[Demand],
    least_tiles: int,
    element_counts: Sequence[int],
) -> list[Placement]:
    """Return placements on at least so many tiles, that of the largest operand first."""
    found: dict[Placement, None] = {}
    order = sorted(range(len(lying)), key=lambda n: -element_counts[n])
    for number in order:
        placement = followed(indexing, indexing.operands[number], lying[number])
        if placement is not None and placement.tiles.count >= least_tiles:
            found[placement] = None
    for wish in wishes[:MOST_WISHES]:
        if len(wish.born.spans) == len(indexing.results[0]):
            placement = followed(indexing, indexing.results[0], wish.born)
            if placement is not None and placement.tiles.count >= least_tiles:
                found[placement] = None
    return list(found)


def cheapest(
    machine: Machine,
    codelet: Codelet,
    operands: Sequence[tuple[Tensor, Mapping]],
    results: Sequence[Tensor],
    wishes: Sequence[Demand],
    placements: Iterable[Placement],
) -> Placement:
    """Return the placement that costs least, the first of equals."""
    wishes = tuple(x for x in wishes if len(x.born.spans) == len(results[0].shape))
    return min(
        placements,
        key=lambda x: _cost(machine, codelet, tuple(operands), tuple(results), wishes, x),
    )


@lru_cache(1 << 13)
def _cost(
    machine: Machine,
    codelet: Codelet,
    operands: tuple[tuple[Tensor, Mapping], ...],
    results: tuple[Tensor, ...],
    wishes: tuple[Demand, ...],
    placement: Placement,
) -> int:
    indexing = codelet.indexing([x for x, _ in operands], results)
    begin = machine.exchange.setup_cycles + machine.exchange.route_cycles + sync(machine).cycles
    price = 0
    parts = []
    for (tensor, lying), indices in zip(operands, indexing.operands, strict=True):
        spans = placement.spans(indices, tensor.shape)
        way = bringing(
            machine, tensor.element_type, tensor.shape, lying, Mapping(placement.tiles, spans)
        )
        if way is not STAYING:
            # All operands come in one exchange.
            price += way.price - (begin if price else 0)
        parts.append(_part(tensor, spans))
    made = []
    for number, (tensor, indices) in enumerate(zip(results, indexing.results, strict=True)):
        spans = placement.spans(indices, tensor.shape)
        made.append(_part(tensor, spans))
        if not number:
            lies = Mapping(placement.tiles, spans)
            for wish in wishes:
                way = bringing(machine, tensor.element_type, tensor.shape, lies, wish.need)
                price += min(way.price, wish.most)
    return price + codelet.work(machine, parts, made).cycles


def _part(tensor: Tensor, spans: Sequence[tuple[int, int, int, int]]) -> Tensor:
    sizes = tuple(min(span[3], n) for span, n in zip(spans, tensor.shape, strict=True))
    return Tensor(tensor.element_type, sizes)
