"""Worker cycles of combining one value into an accumulator, by type and reducer."""

from typing import NamedTuple

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.costs.elementwise_rates import rate_of
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine


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
        slots = 2 * len(body.operand_types) + sum(
            _slots(machine, _operator(node.op, node.parameters), node.element_type)
            for node in body.nodes
        )
        return Combining(1, max(1, slots), half, True)
    if narrow:
        width = machine.tile.load_bytes_per_cycle // (2 if half else 4)
        return Combining(max(1, width), 1, half, False)
    return Combining(1, _slots(machine, monoid, element_type), False, True)


def _operator(op: str, parameters: tuple[tuple[str, str | int], ...]) -> str:
    """Return an op's name in the table of rates."""
    return f"compare-{dict(parameters).get('direction', 'EQ')}" if op == "compare" else op


def _slots(machine: Machine, op: str, element_type: str) -> int:
    """Return the slots of one elementwise op on one element."""
    if op == "constant":
        return 1
    emulation, bits = machine.emulation, ELEMENT_TYPES[element_type].bits
    kind = ELEMENT_TYPES[element_type].kind
    rate = rate_of(op, element_type)
    slots = max(1, over(rate.cycles, max(1, rate.elements)))
    if kind is Kind.COMPLEX:
        return slots * (emulation.c128_factor if bits == 128 else emulation.c64_factor)
    return slots * emulation.f64_factor if kind is Kind.FLOAT and bits == 64 else slots
