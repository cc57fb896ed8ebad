"""When tiles met last, and what they did since: who races whom, counted tile by tile.

What one tile does to its memory and another one reads or fills must be apart by a barrier of both.
Nothing of the verifier is used.
"""

from collections.abc import Callable, Iterable
from math import prod

import numpy as np

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Transfer
from tests.support.counted_parts import cut, is_empty, is_inside, part_of, tiles_of


class TileClocks:
    """Follows one run."""

    def __init__(self, program: Program, report: Callable[[str], None]) -> None:
        self.program = program
        self.report = report
        self.ipus_here = program.ipus
        """That work on the sequence at hand."""
        self.met = [1] * program.ipus
        """How often the tiles of each IPU met."""
        self.all_met = 1
        """How often all did."""
        self.written: dict[tuple[int, int], tuple[int, int]] = {}
        """(variable, tile) -> both counts when it was written last."""
        self.used: dict[tuple[int, int], tuple[int, int]] = {}
        self.tiles = [frozenset(t for _, t in tiles_of(x.mapping.tiles)) for x in program.variables]

    def meet(self, ipus: int) -> None:
        """All tiles of each IPU meet, and those of all IPUs at hand where so many do."""
        self.met = [n + 1 for n in self.met]
        if ipus >= self.ipus_here:
            self.all_met += 1

    def uses(self, variable: int, tile: int, *, writes: bool) -> None:
        now = self._now(variable)
        self.used[variable, tile] = now
        if writes:
            self.written[variable, tile] = now

    def uses_everywhere(self, variable: int, *, writes: bool) -> None:
        for tile in self.tiles[variable]:
            self.uses(variable, tile, writes=writes)

    def leaves_tiles(self, variable: int, place: str) -> None:
        """Check that nothing was done to a variable since its tiles met."""
        self._rested(self.written, variable, self.tiles[variable], place)

    def fills_tiles(self, variable: int, place: str) -> None:
        """Check that nobody used a variable since its tiles met."""
        self._rested(self.used, variable, self.tiles[variable], place)

    def several_ipus(self, variables: Iterable[int], place: str) -> None:
        """Check that all met where what is touched lies on several IPUs."""
        every = list(variables)
        if len({self.program.variables[v].ipu for v in every}) < 2:
            return
        for v in every:
            self._rested(self.used, v, self.tiles[v], place, across=True)

    def transfers(self, transfers: Iterable[Transfer], place: str) -> None:
        """Check transfers that happen at once, and note what they did."""
        done = list(transfers)
        crossed = [self._crossing(transfer, place) for transfer in done]
        for transfer, (senders, receivers) in zip(done, crossed, strict=True):
            for tile in senders:
                self.uses(transfer.source, tile, writes=False)
            for tile in receivers:
                self.uses(transfer.destination, tile, writes=True)

    def _crossing(self, transfer: Transfer, place: str) -> tuple[set[int], set[int]]:
        """Check one transfer; return the tiles that send and those that receive."""
        source = self.program.variables[transfer.source]
        target = self.program.variables[transfer.destination]
        across = source.ipu != target.ipu
        held: dict[int, np.ndarray] = {}
        owner = np.full(source.shape, -1)
        for coordinate, tile in tiles_of(source.mapping.tiles):
            own = cut(part_of(source.mapping.spans, coordinate, source.shape))
            owner[own] = tile
            held[tile] = np.zeros(source.shape, bool)
            held[tile][own] = True
        senders: set[int] = set()
        receivers: set[int] = set()
        for coordinate, tile in tiles_of(transfer.tiles):
            part = part_of(transfer.spans, coordinate, target.shape)
            if not is_inside(tuple((k, k + 1) for k in coordinate), transfer.receivers):
                continue
            moved = tuple(
                (max(a, low) + k, min(b, high) + k)
                for (a, b), (low, high), k in zip(part, transfer.box, transfer.shift, strict=True)
            )
            if is_empty(moved):
                continue
            owners = owner.reshape(transfer.view)[cut(moved)]
            if not across and tile in held:
                owners = owners[~held[tile].reshape(transfer.view)[cut(moved)]]
            receivers.add(tile)
            others = set(np.unique(owners).tolist()) - {-1}
            senders |= others or {tile}
            if others:
                self._rested(self.used, transfer.destination, [tile], place, across=across)
                self._rested(self.written, transfer.source, others, place, across=across)
        return senders, receivers

    def _now(self, variable: int) -> tuple[int, int]:
        return self.met[self.program.variables[variable].ipu], self.all_met

    def _rested(
        self,
        done: dict[tuple[int, int], tuple[int, int]],
        variable: int,
        tiles: Iterable[int],
        place: str,
        *,
        across: bool = False,
    ) -> None:
        x = self.program.variables[variable]
        which = 1 if across else 0
        if not prod(x.shape):
            return
        now = self._now(variable)[which]
        for tile in tiles:
            if (variable, tile) in done and done[variable, tile][which] == now:
                self.report(f"{place}: {x.name} on tile {tile} is still in use")
                return
