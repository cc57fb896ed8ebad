"""Charges sorted by what the cycles go into."""

from collections.abc import Iterable
from typing import NamedTuple

from hloipu_runtime.machine.charges import NOTHING, Charge

BUCKETS = ("compute", "exchange", "sync", "host", "idle")


class Spent(NamedTuple):
    """Cycles by bucket, each with its assumed part."""

    compute: Charge = NOTHING
    exchange: Charge = NOTHING
    sync: Charge = NOTHING
    host: Charge = NOTHING
    idle: Charge = NOTHING
    """Waiting for data from the host that is not there yet."""

    @property
    def total(self) -> Charge:
        """Sum over the buckets."""
        compute, exchange, sync, host, idle = self
        return Charge(
            compute.cycles + exchange.cycles + sync.cycles + host.cycles + idle.cycles,
            compute.assumed_cycles
            + exchange.assumed_cycles
            + sync.assumed_cycles
            + host.assumed_cycles
            + idle.assumed_cycles,
        )

    def plus(self, other: "Spent") -> "Spent":
        """Return what both spend, one after the other."""
        return Spent(*(a.plus(b) for a, b in zip(self, other, strict=True)))

    def times(self, count: int) -> "Spent":
        """Return what `count` repetitions spend."""
        return Spent(*(charge.times(count) for charge in self))


FREE = Spent()


def sum_of(items: Iterable[Spent]) -> Spent:
    """Return what all spend, one after the other."""
    cycles, assumed = [0] * len(BUCKETS), [0] * len(BUCKETS)
    for item in items:
        for bucket, charge in enumerate(item):
            if charge is not NOTHING:
                cycles[bucket] += charge.cycles
                assumed[bucket] += charge.assumed_cycles
    return Spent(*map(Charge, cycles, assumed))
