"""Worker cycles of combining one value into an accumulator, by type and reducer."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.costs.elementwise_rates import rate_of, vector_elements
from hloipu_runtime.codelets.costs.issuing import Issue, op_issue
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine

EXTREMUM_SLOTS = {True: 3, False: 6}
"""Of a value and its place, floats and others: ReduceMaxClassSparse of graphcore/poplibs,
lib/popnn/popnnCycleEstimators.cpp."""
_REGION_LANES = 4
"""Accumulators that a region's values go to by turns, so that its ops work on vectors."""


class Combining(NamedTuple):
    """The inner step of a reduction: a load that goes along with the op, and the op."""

    lanes: int
    """Values of one vector."""
    slots: int
    """To take in one vector; 1 where the load hides the op."""
    half: bool
    """Whether values are f16, in whose terms stores are priced."""
    assumed: bool


def combining(
    machine: Machine, element_type: str, monoid: str, body: Expression | None
) -> Combining:
    """Return the step for values of a type: by a monoid, or by a region's ops one by one.

    Floats of up to 32 bits fill the 64-bit vector; the others rest on the rates of elementwise ops,
    or on assumed factors of emulation.
    """
    element = ELEMENT_TYPES[element_type]
    narrow = element.kind is Kind.FLOAT and element.bits <= 32
    half = narrow and element.exponent_bits <= 5 and element.bits <= 16
    if body is not None and not monoid:
        if keeps_an_extremum(body):
            return Combining(1, EXTREMUM_SLOTS[element.is_float], half, False)
        values = body.operand_types[len(body.results) :]
        slots = sum(over(_REGION_LANES, vector_elements(kind)) for kind in values) + sum(
            op_issue(machine, body, node, _REGION_LANES).slots.slots
            for node in body.nodes
            if node.op != "constant"
        )
        return Combining(_REGION_LANES, max(1, slots), half, True)
    if narrow:
        width = machine.tile.load_bytes_per_cycle // (2 if half else 4)
        return Combining(max(1, width), 1, half, False)
    return Combining(1, _slots(machine, monoid, element_type), False, True)


def taking_issue(machine: Machine, element_type: str, monoid: str, rows: int, length: int) -> Issue:
    """Return the instructions of taking rows of values into accumulators.

    Sums of floats take in two vectors at once, all else one.
    """
    step = combining(machine, element_type, monoid, None)
    lanes = step.lanes * (2 if monoid == "add" and not step.assumed else 1)
    slots = rows * step.slots * over(length, lanes)
    return Issue(0, slots, slots if step.assumed else 0)


@lru_cache(maxsize=64)
def keeps_an_extremum(body: Expression) -> bool:
    """Whether a region keeps the greater, or the lesser, of two values with its place.

    Found by what it computes of all pairs of three values and two places; of equal values either
    may stay.
    """
    kinds = [ELEMENT_TYPES[kind] for kind in body.operand_types]
    if len(kinds) != 4 or len(body.results) != 2 or not kinds[1].is_integer or kinds[0].bits < 8:
        return False
    if not kinds[0].is_float and not kinds[0].is_integer:
        return False
    from hloipu_runtime.codelets.core.expression import region

    old, new = np.divmod(np.arange(36), 6)
    given = [1 + old // 2, old % 2, 1 + new // 2, new % 2]
    arrays = [x.astype(kind.storage) for x, kind in zip(given, kinds, strict=True)]
    value, place = (np.asarray(x) for x in region(body)(*arrays))
    is_old = (value == arrays[0]) & (place == arrays[1])
    is_new = (value == arrays[2]) & (place == arrays[3])
    greater, lesser = arrays[0] > arrays[2], arrays[0] < arrays[2]
    return bool((is_old | is_new).all()) and any(
        bool(is_old[a].all() and is_new[b].all() and not is_new[a].any())
        for a, b in ((greater, lesser), (lesser, greater))
    )


def _slots(machine: Machine, op: str, element_type: str) -> int:
    if op == "constant":
        return 1
    emulation, bits = machine.emulation, ELEMENT_TYPES[element_type].bits
    kind = ELEMENT_TYPES[element_type].kind
    rate = rate_of(op, element_type)
    slots = max(1, over(rate.cycles, max(1, rate.elements)))
    if kind is Kind.COMPLEX:
        return slots * (emulation.c128_factor if bits == 128 else emulation.c64_factor)
    return slots * emulation.f64_factor if kind is Kind.FLOAT and bits == 64 else slots
