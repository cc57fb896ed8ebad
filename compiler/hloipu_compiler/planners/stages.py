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
from hloipu_runtime.codelets.core.codelet import Codelet, Index, Indexing
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.computing import codelet_work
from hloipu_runtime.costs.exchange_price import NO_CODE_PRICE, CodePrice
from hloipu_runtime.costs.vertex_bytes import state_of
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping, Spans

_LEAST_CODE_CYCLES = 1
"""What a byte of exchange code is worth at least. Assumed: of stages of like speed the one with the
fewest pieces."""


class PlacedOperand(NamedTuple):
    """An operand, and where it lies; None: wherever it is wanted, as small constants do."""

    tensor: Tensor
    mapping: Mapping | None


class Work(NamedTuple):
    """A codelet to be planned, and what it works on."""

    machine: Machine
    codelet: Codelet
    operands: tuple[PlacedOperand, ...]
    results: tuple[Tensor, ...]
    code_price: CodePrice = NO_CODE_PRICE
    """What a byte of exchange code is worth."""

    @property
    def indexing(self) -> Indexing:
        """What indexes the operands and results."""
        return _indexing(self.codelet, tuple([x.tensor for x in self.operands]), self.results)


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
def staged(work: Work, placement: Placement) -> Stage:
    """Price a codelet on a grid; what several operands are brought for is one exchange."""
    machine, codelet, operands, results, code_price = work
    wanted, made = _placed(work, placement)
    moved = []
    held_bytes = 0
    for (tensor, lying), (mapping, part) in zip(operands, wanted, strict=True):
        if lying is None:
            continue
        moved.append(redistribution(machine, *tensor, lying, mapping, code_price))
        if moved[-1].transfers:
            held_bytes += bytes_of(part)
    price = together(machine, moved)
    parts, result_parts = tuple([x.part for x in wanted]), tuple([x.part for x in made])
    compute = codelet_work(codelet, machine, parts, result_parts).cycles
    held_bytes += sum(state_of(codelet, machine, parts, result_parts))
    return Stage(
        codelet,
        results,
        placement,
        tuple([x.mapping for x in made]),
        Cycles(compute).plus(cycles_of(price)),
        price.code_bytes,
        held_bytes + sum(map(bytes_of, result_parts)),
        max(_LEAST_CODE_CYCLES, code_price.compared),
    )


def least_price(work: Work, placement: Placement) -> int:
    """Return what a stage costs at least: its work, and to bring what no tile has all of."""
    machine, codelet, operands, _, code_price = work
    wanted, made = _placed(work, placement)
    parts, result_parts = tuple([x.part for x in wanted]), tuple([x.part for x in made])
    compute = codelet_work(codelet, machine, parts, result_parts).cycles
    moved = [
        LeastMoved.of(tensor, lying, mapping)
        for (tensor, lying), (mapping, _) in zip(operands, wanted, strict=True)
        if lying is not None
    ]
    code_cycles = max(_LEAST_CODE_CYCLES, code_price.compared)
    return compute + least_moving_price(machine, moved, code_cycles)


class _Placed(NamedTuple):
    """Where an operand is wanted or a result made, and the largest part that a tile works on."""

    mapping: Mapping
    part: Tensor


def _placed(work: Work, placement: Placement) -> tuple[list[_Placed], list[_Placed]]:
    """Return where a grid has a codelet's operands and results."""
    indexing, tensors = work.indexing, [x.tensor for x in work.operands]
    both = []
    for of_codelet, indices in ((tensors, indexing.operands), (work.results, indexing.results)):
        placed = []
        for tensor, where in zip(of_codelet, indices, strict=True):
            spans = placement.spans(where, tensor.shape)
            placed.append(_Placed(Mapping(placement.tiles, spans), _largest(tensor, spans)))
        both.append(placed)
    return both[0], both[1]


@lru_cache(1 << 12)
def _indexing(
    codelet: Codelet, operands: tuple[Tensor, ...], results: tuple[Tensor, ...]
) -> Indexing:
    return codelet.indexing(operands, results)


def part_of(placement: Placement, indices: Sequence[Index], tensor: Tensor) -> Tensor:
    """Return the largest part of a tensor that a tile of the grid works on."""
    return _largest(tensor, placement.spans(indices, tensor.shape))


def _largest(tensor: Tensor, spans: Spans) -> Tensor:
    sizes = tuple([min(span.size, n) for span, n in zip(spans, tensor.shape, strict=True)])
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
