"""Best layout of a value from which slices are taken one after the other.

A product that is done in slices brings a part of each slice to all of its tiles. If the value lies
on many tiles along other dimensions, each tile takes each of its parts from all of them. Spread
anew first, with few tiles for each slice, it costs one exchange more and far less code.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_compiler.planners.dot_candidates import parts_of
from hloipu_compiler.planners.placing import grid
from hloipu_compiler.planners.redistribution import LEAST_CODE_CYCLES, redistribution
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.exchange_price import CodePrice, exchange_price, transfer_price
from hloipu_runtime.costs.pieces import Sent, what_is_sent
from hloipu_runtime.costs.traffic import transfer_traffic
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping, Sizes, whole_box
from hloipu_runtime.program.program import Role, Variable
from hloipu_runtime.program.steps import Transfer


class Slices(NamedTuple):
    """Slices of a value along a dimension, and where each of them is wanted."""

    dimension: int
    size: int
    """Elements of each along the dimension, but for the last, which may have fewer."""
    wanted: Mapping
    """Of one slice."""


@lru_cache(1 << 10)
def spread_for_slices(
    machine: Machine, tensor: Tensor, lying: Mapping, slices: Slices, code_price: CodePrice
) -> Mapping | None:
    """Return where to spread a value before slices are taken; None: they are best taken from it.

    `lying`: where the value is, on the same IPU. Compared are the price of taking all slices from
    there, and the price of spreading the value and taking them from where it is then.
    """
    if 0 in tensor.shape:
        return None
    count = over(tensor.shape[slices.dimension], slices.size)
    best = None
    least = count * _taking_cycles(machine, tensor, lying, slices, code_price)
    for spread in dict.fromkeys(_spreads(tensor.shape, slices, machine.chip.tiles_per_ipu)):
        price = count * _taking_cycles(machine, tensor, spread, slices, code_price)
        if price < least:
            kind, shape = tensor.element_type, tensor.shape
            price += redistribution(machine, kind, shape, lying, spread, code_price).price
        if price < least:
            best, least = spread, price
    return best


def transfer_cycles(
    machine: Machine,
    transfer: Transfer,
    ends: tuple[Variable, Variable],
    code_price: CodePrice,
    least_code_cycles: int = 0,
) -> int:
    """Return the cycles of a transfer by itself and its sync, its code priced among them.

    A byte of code is worth `least_code_cycles` at least.
    """
    source, target = ends
    traffic = transfer_traffic(transfer, source, target, machine.chip.tiles_per_exchange_bus)
    if traffic is None:
        return 0
    sent = what_is_sent(transfer, source, target) if traffic.fragments else Sent(0, 0)
    moved = transfer_price(machine, traffic, sent, source.mapping.tiles, code_price.of_forms)
    price = exchange_price(machine, [moved])
    return price.cycles + max(least_code_cycles, code_price.compared) * price.code_bytes


def _taking_cycles(
    machine: Machine, tensor: Tensor, lying: Mapping, slices: Slices, code_price: CodePrice
) -> int:
    """Return the cycles of taking a slice in the middle from a value that lies so."""
    dimension, size, wanted = slices
    count = over(tensor.shape[dimension], size)
    low = max(0, count // 2 * size if count > 2 else 0)
    shape = tuple(size if d == dimension else n for d, n in enumerate(tensor.shape))
    starts = tuple(low if d == dimension else 0 for d in range(len(shape)))
    source = Variable("", tensor.element_type, tensor.shape, lying, Role.TEMPORARY)
    target = Variable("", tensor.element_type, shape, wanted, Role.TEMPORARY)
    transfer = Transfer(
        0, 1, wanted.tiles, whole_box(wanted.tiles.extents), wanted.spans, whole_box(shape), starts,
        tensor.shape, 0,
    )  # fmt: skip
    return transfer_cycles(machine, transfer, (source, target), code_price, LEAST_CODE_CYCLES)


def _spreads(shape: Sizes, slices: Slices, tiles: int) -> Iterator[Mapping]:
    """Yield partitions whose blocks along the dimension are parts of slices, or some slices.

    Tiles that are left over share out the other dimensions, all of them or a fraction.
    """
    dimension, block = slices.dimension, slices.size
    while block < shape[dimension]:
        block *= 2
    while True:
        parts = over(shape[dimension], block)
        left = tiles // parts
        while left:
            before = parts_of(shape[:dimension], 0, left, 1)
            behind = left // prod(count for _, count, _ in before)
            after = parts_of(shape[dimension + 1 :], dimension + 1, behind, 1)
            yield grid([*before, (dimension, parts, 1), *after], shape).mapping(shape)
            left //= 2
        if block == 1 or parts > tiles:
            return
        block = over(block, 2)
