"""Charges: cycles, and how many of them rest on assumed numbers."""

from collections.abc import Iterable
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.machine.model import Machine

Amount = int | NDArray[np.int64]
"""A number for one tile, or for every tile of one class; or an array with one entry per tile."""


class Charge(NamedTuple):
    """Cycles of a phase, and how many of them follow from assumed numbers."""

    cycles: int
    assumed_cycles: int = 0

    def plus(self, other: "Charge") -> "Charge":
        """Return the charge of both, one after the other."""
        return Charge(self.cycles + other.cycles, self.assumed_cycles + other.assumed_cycles)

    def times(self, count: int) -> "Charge":
        """Return the charge of `count` repetitions."""
        return Charge(self.cycles * count, self.assumed_cycles * count)


NOTHING = Charge(0)


def slowest(charges: Iterable[Charge]) -> Charge:
    """Return the charge with most cycles, nothing of nothing."""
    return max(charges, default=NOTHING)


def charge_of(machine: Machine, *terms: tuple[int, *tuple[str, ...]]) -> Charge:
    """Return the charge of a sum: each term is cycles and the dotted keys that they rest on."""
    total = assumed = 0
    for cycles, *keys in terms:
        total += cycles
        if cycles and not machine.assumed.isdisjoint(keys):
            assumed += cycles
    return Charge(total, assumed)


@overload
def over(amount: int, rate: int) -> int: ...
@overload
def over(amount: Amount, rate: int) -> Amount: ...
def over(amount: Amount, rate: int) -> Amount:
    """Return amount / rate, rounded up."""
    return -(-amount // rate)
