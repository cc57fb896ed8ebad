"""Charges sorted by what the cycles go into."""

from collections.abc import Iterable
from typing import NamedTuple

from hloipu_runtime.machine.charges import NOTHING, Charge

BUCKETS = ("compute", "exchange", "sync", "remote", "host", "idle")
DEVICE = BUCKETS[:4]
"""What a device spends on its own, however fast its host is."""


class Spent(NamedTuple):
    """Cycles by bucket, each with its assumed part."""

    compute: Charge = NOTHING
    exchange: Charge = NOTHING
    sync: Charge = NOTHING
    remote: Charge = NOTHING
    """Copies from and to the memory beside the IPU."""
    host: Charge = NOTHING
    """Transfers from and to the host that the device waits for, and its calls."""
    idle: Charge = NOTHING
    """Waiting for data from the host that is not there yet."""

    @property
    def total(self) -> Charge:
        """Sum over the buckets."""
        compute, exchange, sync, remote, host, idle = self
        return Charge(
            compute.cycles
            + exchange.cycles
            + sync.cycles
            + remote.cycles
            + host.cycles
            + idle.cycles,
            compute.assumed_cycles
            + exchange.assumed_cycles
            + sync.assumed_cycles
            + remote.assumed_cycles
            + host.assumed_cycles
            + idle.assumed_cycles,
        )

    @property
    def device(self) -> Charge:
        """Sum over what the device spends on its own."""
        return self.without_host.total

    @property
    def without_host(self) -> "Spent":
        """What is spent where the host takes no time."""
        return Spent(self.compute, self.exchange, self.sync, self.remote)

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
