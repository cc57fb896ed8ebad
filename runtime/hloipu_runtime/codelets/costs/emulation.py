"""Cost of element types that the chip lacks.

The prices are the machine's (`emulation`); values do not change.
"""

from collections.abc import Collection
from typing import NamedTuple

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine


class Slots(NamedTuple):
    """Worker slots, and how many of them rest on no source."""

    slots: int
    assumed: int = 0

    def plus(self, other: "Slots") -> "Slots":
        """Return the sum."""
        return Slots(self.slots + other.slots, self.assumed + other.assumed)

    def times(self, factor: int, *, assumed: bool) -> "Slots":
        """Return the product with a factor that may itself rest on no source."""
        slots = self.slots * factor
        return Slots(slots, slots if assumed else self.assumed * factor)


def emulated(machine: Machine, slots: Slots, types: Collection[str], share: int) -> Slots:
    """Add what it costs that some types are emulated by others, for `share` elements a worker."""
    return widened(machine, slots, types).plus(conversion_slots(machine, types, share))


def widened(machine: Machine, slots: Slots, types: Collection[str]) -> Slots:
    """Multiply by the price of the widest type that is emulated in several steps."""
    emulation = machine.emulation
    factors = [
        (emulation.f64_factor, "f64"),
        (emulation.c64_factor, "c64"),
        (emulation.c128_factor, "c128"),
    ]
    widest = max(((f, t) for f, t in factors if t in types), default=None)
    if widest is None:
        return slots
    factor, element_type = widest
    assumed = machine.rests_on_assumption(f"emulation.{element_type}_factor")
    return slots.times(factor, assumed=assumed)


def conversion_slots(machine: Machine, types: Collection[str], share: int) -> Slots:
    """Return the slots to bring elements of short types to those computed in, and back."""
    slots = Slots(0)
    for element_type in types:
        conversion = _conversion(machine, element_type)
        if conversion is not None:
            price, key = conversion
            assumed = machine.rests_on_assumption(f"emulation.{key}")
            slots = slots.plus(Slots(price * share, price * share if assumed else 0))
    return slots


def _conversion(machine: Machine, element_type: str) -> tuple[int, str] | None:
    element = ELEMENT_TYPES[element_type]
    if element_type == "bf16":
        return machine.emulation.bf16_convert_slots, "bf16_convert_slots"
    if element.is_float and element.bits == 8:
        return machine.emulation.f8_convert_slots, "f8_convert_slots"
    if element.bits < 8:
        return machine.emulation.sub_byte_convert_slots, "sub_byte_convert_slots"
    return None
