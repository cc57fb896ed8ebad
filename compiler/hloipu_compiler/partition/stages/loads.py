"""Load of each forward op on its stage: cycles, state, stashes, traffic.

A backward op counts where its forward op does (`backward_places`). State counts where it is read
first, values that the backward pass reads where they are read last.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.analysis.equal_blocks import Occurrence, equal_blocks
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.ops import PRODUCTS
from hloipu_compiler.ir.shapes import TupleShape, byte_count
from hloipu_compiler.partition.stages.backward_places import backward_places, values_at_hand
from hloipu_compiler.partition.stages.handing import VIEWS
from hloipu_compiler.partition.stages.recomputing import CHEAP, made_again
from hloipu_compiler.partition.stages.update_memory import bytes_of_updates
from hloipu_compiler.partition.training.reach import parameter_positions
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, FREE, UPDATE, Phases
from hloipu_compiler.passes.outline_blocks import outlining_weight

Floats = NDArray[np.float64]
_LEAST_LAYER_BYTES = 4_000
"""Code that equal blocks save at least for cuts to keep them whole. Assumed."""
_MOST_TIED = 8
"""Weights that several ops read and that cuts are balanced for. Assumed: networks have one or two
that are large, such as an embedding that is the output layer, too."""


@dataclass(frozen=True)
class Loads:
    """Sums over ops are differences of the fields named `…_until`: one number more than ops."""

    ahead: tuple[int, ...]
    """Positions of the forward ops."""
    forward_until: Floats
    """Cycles."""
    backward_until: Floats
    state_until: Floats
    """Bytes of weights and of statistics."""
    optimizer_until: Floats
    """Bytes of what only the update reads, in proportion to the weights."""
    gradients_until: Floats
    """Bytes of what accumulators hold."""
    stash_until: Floats
    """Bytes that wait for the backward pass, of one micro-batch."""
    crossing: Floats
    """Bytes that later ops take from those before each place."""
    update_cycles: float
    trains: bool
    inside: frozenset[int] = frozenset()
    """Places between ops of one trip of a loop: better not cut at."""
    updates: Floats = field(default_factory=lambda: np.zeros((2, 0)))
    """By forward op: most bytes that updating one of the weights takes that it reads first; and the
    same with what only the update reads. Empty: nothing."""
    tied: tuple[tuple[int, int, float], ...] = ()
    """The first and the last op that read a weight, by place, and its bytes; of the largest."""
    cheap_stash_until: Floats | None = None
    """`stash_until`, if what is cheap is made again; None: the same."""


def loads_of(
    entry: Computation,
    phases: Phases,
    constants: Sequence[int],
    cycles: Sequence[float],
    trips: Mapping[str, Hashable] = MappingProxyType({}),
) -> Loads:
    """Return the loads of a step's forward ops.

    `constants`: parameters that are no state and stay on the device; `cycles`: of every op;
    `trips`: of ops that were in a loop, by name.
    """
    loading = _Loading(entry, phases, constants, cycles)
    loads = loading.loads()
    of_op = [trips.get(entry.instructions[position].name) for position in loads.ahead]
    inside = _inside(of_op)
    return replace(loads, inside=_at_checkpoints(inside, loading.unread_crossing))


def layers_of(entry: Computation, phases: Phases) -> Mapping[str, Hashable]:
    """Return the layer of each forward op that is in one of several equal blocks, by name.

    A layer before the first of these or behind the last is one as well if it has the same products:
    it may differ in what all layers share, which is computed in its midst.
    """
    names = [op.name for op in entry.instructions]
    ahead = {
        name for name, phase in zip(names, phases.phase, strict=True) if phase in (FORWARD, FREE)
    }

    def weight(op: Instruction) -> int:
        return outlining_weight(op) if op.name in ahead else -1

    equal_layers = equal_blocks((entry,), weight, 0, _LEAST_LAYER_BYTES)
    layers: dict[str, Hashable] = {}
    for number, equal in reversed([*enumerate(equal_layers)]):  # those that save most come last
        blocks = sorted(equal.occurrences)
        for layer, block in enumerate(blocks):
            layers |= {names[position]: (number, layer) for position in block.positions}
        for layer, positions in enumerate(_beside(entry, ahead, blocks), len(blocks)):
            layers |= {names[n]: (number, layer) for n in positions if names[n] in ahead}
    return layers


def _beside(entry: Computation, ahead: Set[str], blocks: Sequence[Occurrence]) -> Iterator[range]:
    """Yield what stands before and behind blocks that follow each other and has their products."""
    products = [
        (n, op.opcode, op.shape)
        for n, op in enumerate(entry.instructions)
        if op.opcode in PRODUCTS and op.name in ahead
    ]
    at = [n for n, *_ in products]
    ends = [bisect_left(at, n) for x in blocks[:2] for n in (x.positions[0], x.positions[-1] + 1)]
    count = ends[1] - ends[0]
    if not count or ends[1] != ends[2]:
        return
    kinds = [kind for _, *kind in products]
    first, last = ends[0], bisect_left(at, blocks[-1].positions[-1] + 1)
    if kinds[max(0, first - count) : first] == kinds[first : first + count]:
        yield range(at[first - count], blocks[0].positions[0])
    if kinds[last : last + count] == kinds[first : first + count]:
        yield range(blocks[-1].positions[-1] + 1, at[last + count - 1] + 1)


def _inside(trips: Sequence[Hashable]) -> frozenset[int]:
    """Return the places before and behind which the same trip is; ops of none count for nothing."""
    places: set[int] = set()
    last, since = None, 0
    for place, trip in enumerate(trips):
        if trip is None:
            continue
        if trip == last:
            places.update(range(since, place + 1))
        last, since = trip, place + 1
    return frozenset(places)


def _at_checkpoints(inside: Set[int], unread_crossing: Sequence[float]) -> frozenset[int]:
    """Return the places within layers, with ends of layers moved to where checkpoints cross.

    Equal layers may begin anywhere, such as before the norm that ends a block of `jax.checkpoint`,
    or before the last of its ops. `unread_crossing`: by place, bytes of what crosses it and no
    backward op reads; empty: nothing is computed again.
    """
    if not any(unread_crossing):
        return frozenset(inside)
    last = len(unread_crossing) - 1
    borders = [n for n in range(1, last) if n not in inside]
    moved, before = set(inside), 0
    for n, behind in zip(borders, [*borders[1:], last], strict=True):
        near = sorted(range(before + 1, behind), key=lambda place: abs(place - n))
        before = min(near, key=lambda place: unread_crossing[place])
        moved ^= {n} ^ {before}
    return frozenset(moved)


class _Loading:
    def __init__(
        self, entry: Computation, phases: Phases, constants: Sequence[int], cycles: Sequence[float]
    ) -> None:
        self.entry = entry
        self.phases = phases
        self.constants = constants
        self.cycles = cycles
        self.ahead = tuple(n for n, phase in enumerate(phases.phase) if phase == FORWARD)
        self.place = [-1] * len(entry.instructions)
        for place, position in enumerate(self.ahead):
            self.place[position] = place
        self.count = len(self.ahead)
        self.trains = bool(phases.gradients)
        self.tied: list[tuple[int, int, float]] = []
        self.unread_crossing: Sequence[float] = ()
        """By place: bytes of what crosses it and no backward op reads, if any computes it again."""

    def loads(self) -> Loads:
        backward, stash, cheap_stash = self._backward()
        state, optimizer, gradients, updates = self._state()
        forward = np.zeros(self.count)
        for place, position in enumerate(self.ahead):
            forward[place] = self.cycles[position]
        update = sum(self.cycles[n] for n, phase in enumerate(self.phases.phase) if phase == UPDATE)
        return Loads(
            self.ahead, _sums(forward), _sums(backward), _sums(state), _sums(optimizer),
            _sums(gradients), _sums(stash), np.array(self._crossing(self.ahead)), update,
            self.trains,
            updates=updates, tied=tuple(self.tied), cheap_stash_until=_sums(cheap_stash),
        )  # fmt: skip

    def _backward(self) -> tuple[Floats, Floats, Floats]:
        """Return the cycles of backward ops and the bytes that wait for them, by place.

        And those that wait if what is cheap is made again.
        """
        cycles = np.zeros(self.count)
        placed = backward_places(self.entry, self.phases, self.place, self.count - 1)
        places, phase = placed.places, self.phases.phase
        unread = {
            n
            for n in self.ahead
            if not self._is_view(n) and all(phase[i] != BACKWARD for i in self.entry.users[n])
        }
        if unread.intersection(placed.repeated.values()):
            self.unread_crossing = self._crossing(sorted(unread))
        waits: dict[int, int] = {}
        for position, op in enumerate(self.entry.instructions):
            if self.phases.phase[position] != BACKWARD:
                continue
            cycles[places[position]] += self.cycles[position]
            for i in op.operands:
                if self._is_stashed(i):
                    waits[i] = max(waits.get(i, 0), places[position])
        return cycles, self._stash(waits), self._stash(self._with_cheap_again(waits))

    def _stash(self, waits: Mapping[int, int]) -> Floats:
        """Return the bytes of values that wait for places, by place."""
        stash = np.zeros(self.count)
        for i, place in waits.items():
            stash[place] += byte_count(self.entry.instructions[i].shape)
        return stash

    def _with_cheap_again(self, waits: Mapping[int, int]) -> Mapping[int, int]:
        """Return what waits, by place, where values that are cheap are made from others again.

        As of one stage: the minimum cut is about the same for each part of the step.
        """
        of_one = tuple(-1 if phase == UPDATE else 0 for phase in self.phases.phase)
        again = made_again(self.entry, self.phases, of_one, 2, CHEAP).get(0, frozenset())
        needed = dict(waits)
        for position in sorted(again, reverse=True):
            place = needed.pop(position, -1)
            for i in self.entry.instructions[position].operands if place >= 0 else ():
                if self._is_stashed(i):
                    needed[i] = max(needed.get(i, 0), place)
        return needed

    def _is_view(self, position: int) -> bool:
        """Whether it shows a value of the forward pass otherwise, wherever that is read."""
        is_forward = self.phases.phase[position] == FORWARD
        return is_forward and self.entry.instructions[position].opcode in VIEWS

    def _is_stashed(self, position: int) -> bool:
        """Whether it is a value of each micro-batch that the forward pass has: not a weight."""
        op = self.entry.instructions[position]
        if self.phases.phase[position] == FORWARD:
            return not isinstance(op.shape, TupleShape)
        return False

    def _state(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return bytes of state, of what only the update reads, and of gradients, by place.

        And the most bytes that updates of single weights take.
        """
        readers = values_at_hand(self.entry, self.phases, self.place, small=True)
        parameters = parameter_positions(self.entry)
        state = np.zeros(self.count)
        updated = {pair.parameter for pair in self.phases.updated}
        kept = {pair.parameter for pair in (*self.phases.kept, *self.phases.per_micro_batch)}
        elsewhere = 0.0
        trained = np.zeros(self.count)
        places: dict[int, int] = {}
        for number, positions in enumerate(parameters):
            if number not in updated | kept and number not in self.constants:
                continue
            size = (
                float(byte_count(self.entry.instructions[positions[0]].shape)) if positions else 0.0
            )
            reading = [place for i in positions for place in readers[i]]
            at = min(reading, default=-1)
            if at < 0:
                elsewhere += size
                continue
            state[at] += size
            if number in updated:
                trained[at] += size
                places[number] = at
                if max(reading) > at:
                    self.tied.append((at, max(reading), size))
        self.tied = sorted(self.tied, key=lambda x: -x[2])[:_MOST_TIED]
        optimizer = trained * (elsewhere / trained.sum()) if trained.sum() else np.zeros(self.count)
        updates = np.zeros((2, self.count))
        for number, needed in bytes_of_updates(self.entry, self.phases, [*places]).items():
            at = places[number]
            updates[:, at] = np.maximum(updates[:, at], needed)
        return state, optimizer, trained, updates

    def _crossing(self, positions: Iterable[int]) -> list[float]:
        """Return the bytes of some forward values that later ops read, by place."""
        change = [0.0] * (self.count + 2)
        for position in positions:
            number, users = self.place[position], self.entry.users[position]
            last = max((self.place[user] for user in users), default=-1)
            if last > number:
                size = float(byte_count(self.entry.instructions[position].shape))
                change[number + 1] += size
                change[last + 1] -= size
        bytes_by_place, total = [], 0.0
        for value in change[: self.count + 1]:
            total += value
            bytes_by_place.append(total)
        return bytes_by_place


def _sums(values: Floats) -> Floats:
    return np.concatenate(([0.0], np.cumsum(values)))
