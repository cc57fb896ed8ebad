"""Propagation: shardings of all arrays from those that the text states, to a fixed point.

For each op, axes go along the factors of its dimension rule from the arrays that have them to those
that have less. Parts are only ever appended, so each array changes at most as often as the mesh has
parts, and each change has a look at the ops around: time is linear in links.

Where axes of one op do not go together, the price decides: arrays that do not get their way are
moved between devices before the op, so the axes win whose holders have the most bytes (of one
factor: all operands and results that have these axes along it); ties go to more blocks, then to the
earlier factor. Rounds let what never moves data decide first:

    0  elementwise ops, reshapes, transposes, edges of loops, calls and branches, whose operands
       nothing else reads
    1  all of these
    2  all ops along factors that pass through, broadcasts only from their results
    3  all ops along all factors, broadcasts only from their results
    4  all ops, along all factors

In texts of GSPMD broadcasts go both ways from round 2 on, so that what a mask is made of is divided
as the data that it is for.

Dimensions of a later priority are seen after all rounds of the priorities before them.
Source: openxla/shardy `docs/propagation.md`,
`shardy/dialect/sdy/transforms/propagation/op_priority_propagation.cc` (rounds).
"""

from collections import Counter
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import prod
from typing import NamedTuple

from hloipu_compiler.ir.factors import DimensionRule, FactorKind
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.partition.spmd.axes import (
    Axes,
    AxisSharding,
    DeviceAxes,
    bits,
    factor_places,
    parts_along,
)
from hloipu_compiler.partition.spmd.links import (
    ALIASES,
    Direction,
    Link,
    Links,
    StatePairs,
    links_of,
)
from hloipu_compiler.partition.spmd.reading import Key, Stated
from hloipu_compiler.partition.spmd.stated_shardings import Decision, StatedShardings
from hloipu_runtime.frozen import dataclass

_ROUNDS = 5
_FIRST = ELEMENTWISE | frozenset(
    "reshape transpose edge group copy opt-barrier domain tuple get-tuple-element custom-call map"
    " border region".split()
)
"""Opcodes that go first, in both directions."""
CALLING = frozenset("while conditional call".split())
"""Opcodes whose results are those of other computations."""
_ALIKE = ELEMENTWISE | frozenset("edge group copy custom-call border".split())
"""Opcodes with nothing to do where all arrays are divided alike."""
_FIRST_FORWARD = frozenset({"dynamic-slice", "dynamic-update-slice"})


class Candidate(NamedTuple):
    """Parts by which a factor of an op may be divided."""

    factor: int
    parts: Axes
    source: int
    """The first array that has them."""


@dataclass(frozen=True, slots=True)
class Propagated:
    """The sharding of every array of a module."""

    links: Links
    axes: DeviceAxes
    shardings: tuple[AxisSharding, ...]
    """By the number of the array."""
    stated: frozenset[int]
    """Arrays about which the text says something."""
    decisions: tuple[tuple[Decision, ...], ...]
    """By the number of the array, in the order in which they were taken."""

    def result(self, key: Key) -> tuple[AxisSharding, ...]:
        """Return the shardings of an op's result, leaf by leaf."""
        return tuple(self.shardings[a] for a in self.links.results.get(key, ()))


def propagated(
    module: Module, stated: Stated, state: StatePairs = (), links: Links | None = None
) -> Propagated:
    """Return shardings of all arrays of a verified module from those that it states.

    `state`: parameters and results of the entry that are to be divided alike. `links`: those of the
    module, where it has no borders and they are known.
    """
    engine = _Engine(links or links_of(module, stated, state), stated, module)
    engine.run()
    return engine.result()


class _Engine(StatedShardings):
    def __init__(self, links: Links, stated: Stated, module: Module) -> None:
        super().__init__(links, stated, module)
        self.waiting: list[dict[int, None]] = [{} for _ in range(_ROUNDS)]
        """Links to look at, for each round."""
        self.touched: list[int] = []
        """Links that came to wait since a link was looked at."""
        self.places = links.places
        self.around: list[list[int]] = [[] for _ in range(len(self.links.shapes))]
        for number, link in enumerate(self.all_links):
            for array in dict.fromkeys(link.arrays):
                self.around[array].append(number)
        reads = Counter(a for link in self.all_links for a in _operands(link))
        self.shared = [
            any(reads[a] > 1 and self.links.shapes[a].dimensions for a in _operands(link))
            for link in self.all_links
        ]
        """Of each link whether others read what it reads."""

    # ---- rounds -----------------------------------------------------------------------------

    def run(self) -> None:
        """Propagate by priorities and rounds until nothing changes."""
        everything = dict.fromkeys(range(len(self.all_links)))
        for priority in sorted(self.priorities):
            if priority:
                self._show(priority)
            else:
                self.waiting = [dict(everything) for _ in range(_ROUNDS)]
            for round_number in range(_ROUNDS):
                self._sweep(round_number)

    def _show(self, priority: int) -> None:
        for array, sharding in list(self.hidden.items()):
            closed = list(self.closed[array])
            for d, p in enumerate(sharding.priorities):
                if p == priority:
                    self.dimensions[array][d] = sharding.dimensions[d]
                    closed[d] = sharding.closed[d]
                    self._touch(array)
            self.closed[array] = tuple(closed)
            if priority >= max(sharding.priorities):
                del self.hidden[array]

    def _touch(self, array: int) -> None:
        self.touched += self.around[array]
        for number in self.around[array]:
            for waiting in self.waiting:
                waiting[number] = None

    def _sweep(self, round_number: int) -> None:
        """Look at the links of a round, forwards and backwards in turn, until none waits.

        What comes to wait ahead, in the direction of a pass, is looked at in the same pass.
        """
        direction = 1
        waiting = self.waiting[round_number]
        while waiting:
            now = [direction * number for number in waiting]
            heapify(now)
            while now:
                number = direction * heappop(now)
                if number not in waiting:
                    continue
                del waiting[number]
                self.touched.clear()
                self._visit(number, round_number)
                for other in self.touched:
                    if direction * other > direction * number:
                        heappush(now, direction * other)
            direction = -direction

    def _visit(self, number: int, round_number: int) -> None:
        link = self.all_links[number]
        rule = link.rule
        direction = _direction(link, round_number, is_shardy=self.stated.is_shardy)
        if direction is Direction.NONE or (not round_number and self.shared[number]):
            return
        known = self.dimensions[link.arrays[-1]]
        if link.opcode in _ALIKE and all(self.dimensions[a] == known for a in link.arrays):
            return
        if id(rule) not in self.places:
            self.places[id(rule)] = factor_places(rule)
        parts_by_factor = parts_along(self.axes, rule, [self.dimensions[a] for a in link.arrays])
        if not parts_by_factor:
            return
        order = self._by_price(link, rule, parts_by_factor, round_number)
        sides = {Direction.FORWARD: (True,), Direction.BACKWARD: (False,)}
        for of_results in sides.get(direction, (True, False)):
            for candidate in order:
                self._follow(link, candidate, parts_by_factor, of_results)

    def _follow(
        self,
        link: Link,
        candidate: Candidate,
        parts_by_factor: dict[tuple[int, int], Axes],
        of_results: bool,
    ) -> None:
        """Give a factor's parts to the results of an op, or to its operands.

        An operand of an elementwise op follows another one no further than the result does.
        """
        factor, parts, _ = candidate
        first = len(link.rule.operands)
        if not of_results and link.opcode in ELEMENTWISE:
            limit = parts_by_factor.get((first, factor), ())
            if parts[: len(limit)] == limit:
                parts = limit
        for array, d, k in self.places[id(link.rule)][factor]:
            own = parts_by_factor.get((array, factor), ())
            is_behind = len(own) < len(parts) and parts[: len(own)] == own
            if is_behind and (array >= first) is of_results:
                chosen = candidate._replace(parts=parts)
                self._extend(link, (array, d, k), chosen, parts_by_factor)

    def _by_price(
        self,
        link: Link,
        rule: DimensionRule,
        parts_by_factor: dict[tuple[int, int], Axes],
        round_number: int,
    ) -> "list[Candidate]":
        """Return what the factors may be divided by, what is dearest to move first."""
        weights: dict[tuple[int, Axes], int] = {}
        origins: dict[tuple[int, Axes], int] = {}
        for (array, factor), parts in parts_by_factor.items():
            known = rule.factors[factor]
            if known.blocked or (round_number == 2 and known.kind is not FactorKind.PASS_THROUGH):
                continue
            key = (factor, parts)
            size = self.links.shapes[link.arrays[array]].byte_count
            weights[key] = weights.get(key, 0) + size
            origins.setdefault(key, link.arrays[array])
        order = sorted(
            weights, key=lambda each: (-weights[each], -self.axes.extent(each[1]), each[0])
        )
        return [Candidate(factor, parts, origins[factor, parts]) for factor, parts in order]

    def _extend(
        self,
        link: Link,
        place: tuple[int, int, int],
        candidate: Candidate,
        parts_by_factor: dict[tuple[int, int], Axes],
    ) -> None:
        """Append parts to a dimension of an array, as far as it is free and they are not used."""
        array, d, k = place
        factor, parts, source = candidate
        number, rule = link.arrays[array], link.rule
        if not self.closed[number] or self.closed[number][d]:
            return
        numbers = (*rule.operands, *rule.results)[array][d]
        own, along = self.dimensions[number][d], parts_by_factor.get((array, factor), ())
        before = prod(rule.factors[n].size for n in numbers[:k])
        count = self.axes.extent(along)
        if self.axes.extent(own) != before * count:
            return  # a factor major to it is not divided to the end, or one minor to it is
        is_minor, room = k + 1 == len(numbers), rule.factors[factor].size
        appended: list[int] = []
        for part in parts[len(along) :]:
            count *= self.axes.sizes[part]
            if self.used[number] >> part & 1 or (not is_minor and room % count):
                break
            appended.append(part)
        if appended:
            new = tuple(appended)
            self.dimensions[number][d] = own + new
            self.used[number] |= bits(new)
            parts_by_factor[array, factor] = along + new
            self.decisions[number].append(Decision(d, new, link, source))
            self._touch(number)

    # ---- results ----------------------------------------------------------------------------

    def result(self) -> Propagated:
        """Return all shardings; what only propagation made uneven at the border is cut back."""
        self._cut_back()
        for array, uses in self.links.uses.items():
            each = {tuple(self.dimensions[use]) for use in uses}
            if self.base[array] is None and len(each) == 1:
                self.dimensions[array] = list(each.pop())
                self.decisions[array] += self.decisions[uses[0]]
        shardings = tuple(map(self._sharding, range(len(self.links.shapes))))
        stated = frozenset(a for a, s in enumerate(self.base) if s is not None)
        links = replace(self.links, links=self.all_links)
        return Propagated(links, self.axes, shardings, stated, tuple(map(tuple, self.decisions)))

    def _sharding(self, array: int) -> AxisSharding:
        dimensions = tuple(self.dimensions[array])
        base = self.base[array] or AxisSharding()
        closed = (True,) * len(dimensions)
        return replace(base, dimensions=dimensions, closed=closed, priorities=(), replicated=0)

    def _cut_back(self) -> None:
        """Shorten parameters' and results' shardings to what divides them, as Shardy does.

        Of what no text states, a part of an axis is left out too, and under GSPMD all of a
        dimension that its parts do not divide. What a loop, a branch or a call hands out keeps its
        own, which it has inside as well. Source: openxla/shardy
        `update_non_divisible_input_output_shardings.cc`,
        `remove_sub_axes_in_input_output_shardings.cc`; openxla/xla
        `xla/service/sharding_propagation.cc`.
        """
        entry = self.module.entry
        ends = [(entry.name, i) for i in (*entry.parameters, entry.root)]
        own = ((link.arrays, link.opcode) for link in self.all_links if link.key == ends[-1])
        made_of = {arrays[1]: arrays[0] for arrays, opcode in own if opcode in ALIASES}
        for array in {a for key in ends for a in self.links.results.get(key, ())}:
            given = self.base[array] or self.base[made_of.get(array, array)]
            owner, position = self.links.owners[made_of.get(array, array)][0]
            if self.module.computation[owner].instructions[position].opcode in CALLING:
                continue
            for d, parts in enumerate(self.dimensions[array]):
                kept = self.axes.even(parts, self.links.shapes[array].dimensions[d])
                said = given.dimensions[d] if given is not None and given.dimensions else ()
                if not said and kept != parts:
                    kept = self.axes.of_whole_axes(kept) if self.stated.is_shardy else ()
                self.dimensions[array][d] = kept if len(kept) > len(said) else parts[: len(said)]


def _operands(link: Link) -> tuple[int, ...]:
    return link.arrays[: len(link.rule.operands)]


def _direction(link: Link, round_number: int, *, is_shardy: bool) -> Direction:
    """Return what may follow what at an op, in one round."""
    if round_number < 2:
        if link.opcode in _FIRST_FORWARD:
            return Direction.FORWARD
        return link.direction if link.opcode in _FIRST else Direction.NONE
    if link.repeats and is_shardy and round_number < 4:
        return Direction.BACKWARD
    return link.direction
