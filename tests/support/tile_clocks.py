"""When tiles met last, and what they did since: who races whom, counted tile by tile.

What one tile does to its memory and another one reads or fills must be apart by a barrier of both.
Nothing of the verifier is used.
"""

from collections.abc import Callable, Iterable, Iterator
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
        self.crossings: dict[int, list[tuple[int, set[int]]]] = {}
        """By the `id` of a transfer of the program, which is always the same."""
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
        done = [(transfer, self._crossing(transfer)) for transfer in transfers]
        for transfer, crossing in done:
            source, target = transfer.source, transfer.destination
            across = self.program.variables[source].ipu != self.program.variables[target].ipu
            for tile, others in crossing:
                if others:
                    self._rested(self.used, target, [tile], place, across=across)
                    self._rested(self.written, source, others, place, across=across)
        for transfer, crossing in done:
            for tile, others in crossing:
                for sender in others or {tile}:
                    self.uses(transfer.source, sender, writes=False)
                self.uses(transfer.destination, tile, writes=True)

    def _crossing(self, transfer: Transfer) -> list[tuple[int, set[int]]]:
        """Return the tiles that receive, each with the others that send to it."""
        if id(transfer) not in self.crossings:
            self.crossings[id(transfer)] = [*self._counted(transfer)]
        return self.crossings[id(transfer)]

    def _counted(self, transfer: Transfer) -> Iterator[tuple[int, set[int]]]:
        source = self.program.variables[transfer.source]
        target = self.program.variables[transfer.destination]
        held: dict[int, np.ndarray] = {}
        owner = np.full(source.shape, -1)
        for coordinate, tile in tiles_of(source.mapping.tiles):
            own = cut(part_of(source.mapping.spans, coordinate, source.shape))
            owner[own] = tile
            held[tile] = np.zeros(source.shape, bool)
            held[tile][own] = True
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
            if source.ipu == target.ipu and tile in held:
                owners = owners[~held[tile].reshape(transfer.view)[cut(moved)]]
            yield tile, set(np.unique(owners).tolist()) - {-1}

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
