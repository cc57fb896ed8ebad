"""A planned stage: a codelet on a grid, priced with the exchange of its operands."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_compiler.planners.placing import Placement
from hloipu_compiler.planners.planned import Cycles, cycles_of
from hloipu_compiler.planners.redistribution import (
    LeastMoved,
    least_moving_price,
    redistribution,
    together,
)
from hloipu_runtime.codelets.core.codelet import Codelet, Index, Indexing, Tensor
from hloipu_runtime.costs.computing import codelet_work
from hloipu_runtime.costs.exchange_price import NO_CODE_PRICE, CodePrice
from hloipu_runtime.costs.vertex_bytes import state_of
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping

_LEAST_CODE_CYCLES = 1
"""What a byte of exchange code is worth at least. Assumed: of stages of like speed the one with the
fewest pieces."""


class PlacedOperand(NamedTuple):
    """An operand, and where it lies; None: wherever it is wanted, as small constants do."""

    tensor: Tensor
    mapping: Mapping | None


class Stage(NamedTuple):
    """A codelet on a grid, with its price."""

    codelet: Codelet
    results: tuple[Tensor, ...]
    placement: Placement
    mappings: tuple[Mapping, ...]
    """Of the results."""
    cycles: Cycles
    code_bytes: int
    """Of exchanges, on a tile."""
    held_bytes: int
    """Of the vertex, of what is brought to its tile, and of what it makes there."""

    code_cycles: int = _LEAST_CODE_CYCLES
    """What a byte of code is worth."""

    @property
    def price(self) -> int:
        """Cycles, and what the code is worth in cycles."""
        return self.cycles.total + self.code_cycles * self.code_bytes


@lru_cache(1 << 13)
def staged(
    machine: Machine,
    codelet: Codelet,
    operands: tuple[PlacedOperand, ...],
    results: tuple[Tensor, ...],
    placement: Placement,
    code_price: CodePrice = NO_CODE_PRICE,
) -> Stage:
    """Price a codelet on a grid; what several operands are brought for is one exchange.

    `code_price`: what a byte of exchange code is worth.
    """
    indexing = codelet.indexing([x.tensor for x in operands], results)
    parts, result_parts = _parts(indexing, operands, results, placement)
    moved = []
    held_bytes = 0
    for (tensor, lying), indices, part in zip(operands, indexing.operands, parts, strict=True):
        if lying is None:
            continue
        kind, shape = tensor
        wanted = Mapping(placement.tiles, placement.spans(indices, shape))
        moved.append(redistribution(machine, kind, shape, lying, wanted, code_price))
        if moved[-1].transfers:
            held_bytes += bytes_of(part)
    price = together(machine, moved)
    work = codelet_work(codelet, machine, parts, result_parts).cycles
    held_bytes += sum(state_of(codelet, machine, parts, result_parts))
    mappings = tuple(
        Mapping(placement.tiles, placement.spans(indices, x.shape))
        for x, indices in zip(results, indexing.results, strict=True)
    )
    return Stage(
        codelet,
        results,
        placement,
        mappings,
        Cycles(work).plus(cycles_of(price)),
        price.code_bytes,
        held_bytes + sum(map(bytes_of, result_parts)),
        max(_LEAST_CODE_CYCLES, code_price.compared),
    )


def least_price(
    machine: Machine,
    codelet: Codelet,
    operands: tuple[PlacedOperand, ...],
    results: tuple[Tensor, ...],
    placement: Placement,
    code_price: CodePrice,
) -> int:
    """Return what a stage costs at least: its work, and to bring what no tile has all of."""
    indexing = codelet.indexing([x.tensor for x in operands], results)
    parts, result_parts = _parts(indexing, operands, results, placement)
    work = codelet_work(codelet, machine, parts, result_parts).cycles
    moved = [
        LeastMoved.of(tensor, lying, part.shape)
        for (tensor, lying), part in zip(operands, parts, strict=True)
        if lying is not None
    ]
    code_cycles = max(_LEAST_CODE_CYCLES, code_price.compared)
    return work + least_moving_price(machine, moved, code_cycles)


def _parts(
    indexing: Indexing,
    operands: Sequence[PlacedOperand],
    results: Sequence[Tensor],
    placement: Placement,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the largest parts of operands and results that a tile of the grid works on."""
    of_operands = zip(operands, indexing.operands, strict=True)
    of_results = zip(results, indexing.results, strict=True)
    return (
        tuple([part_of(placement, indices, x.tensor) for x, indices in of_operands]),
        tuple([part_of(placement, indices, x) for x, indices in of_results]),
    )


def part_of(placement: Placement, indices: Sequence[Index], tensor: Tensor) -> Tensor:
    """Return the largest part of a tensor that a tile of the grid works on."""
    spans = placement.spans(indices, tensor.shape)
    sizes = tuple(min(span.size, n) for span, n in zip(spans, tensor.shape, strict=True))
    return Tensor(tensor.element_type, sizes)


def total_cycles(stages: Sequence[Stage]) -> Cycles:
    """Return the predicted cycles of all stages."""
    total = Cycles()
    for stage in stages:
        total = total.plus(stage.cycles)
    return total


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor in a tile's memory."""
    return over(prod(tensor.shape) * ELEMENT_TYPES[tensor.element_type].bits, 8)
