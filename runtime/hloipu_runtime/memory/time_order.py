"""Allocation in time order, as a run would allocate and free."""

from bisect import bisect_left, insort
from heapq import heappop, heappush

from hloipu_runtime.memory.requests import Request


def by_time(requests: list[Request], passing: list[int], bottom: int) -> list[int]:
    """Return addresses from `bottom` up for the requests numbered in `passing`.

    First needed first, each in the tightest gap, as if all were on the same tiles. Holes in time
    are not made use of.
    """
    ranges = [(requests[n].ranges[0][0], requests[n].ranges[-1][1]) for n in passing]
    order = sorted(range(len(passing)), key=lambda n: (ranges[n][0], -requests[passing[n]].size, n))
    heap = _Heap(bottom)
    addresses = [0] * len(passing)
    ending: list[tuple[int, int, int]] = []
    for n in order:
        begin, end = ranges[n]
        while ending and ending[0][0] < begin:
            _, address, size = heappop(ending)
            heap.free(address, size)
        size = requests[passing[n]].size
        if size:
            addresses[n] = heap.take(size)
            heappush(ending, (end, addresses[n], size))
        else:
            addresses[n] = heap.bottom
    return addresses


class _Heap:
    """Free memory from an address up: gaps by size and by address, joined when they touch."""

    def __init__(self, bottom: int) -> None:
        self.bottom = self.end = bottom
        self.sizes: list[tuple[int, int]] = []
        """(size, address) of each gap, sorted."""
        self.gaps: dict[int, int] = {}
        """Address -> size."""
        self.gap_ends: dict[int, int] = {}
        """Address after a gap -> the gap's address."""

    def take(self, size: int) -> int:
        """Return the address of `size` bytes that are free from now on until they are freed."""
        where = bisect_left(self.sizes, (size, 0))
        if where < len(self.sizes):
            room, address = self.sizes[where]
            self._remove(address, room)
            if room > size:
                self._add(address + size, room - size)
            return address
        start = self.gap_ends.get(self.end)
        if start is None:
            start = self.end
        else:
            self._remove(start, self.gaps[start])
        self.end = start + size
        return start

    def free(self, address: int, size: int) -> None:
        """Give bytes back."""
        before = self.gap_ends.get(address)
        if before is not None:
            room = self.gaps[before]
            self._remove(before, room)
            address, size = before, room + size
        after = self.gaps.get(address + size)
        if after is not None:
            self._remove(address + size, after)
            size += after
        self._add(address, size)

    def _add(self, address: int, size: int) -> None:
        insort(self.sizes, (size, address))
        self.gaps[address] = size
        self.gap_ends[address + size] = address

    def _remove(self, address: int, size: int) -> None:
        del self.sizes[bisect_left(self.sizes, (size, address))]
        del self.gaps[address]
        del self.gap_ends[address + size]
