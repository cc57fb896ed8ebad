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

from hloipu_compiler.ir.annotations import GSPMD_IN, GSPMD_OUT
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
    identity_rule,
    links_of,
    region_rule,
)
from hloipu_compiler.partition.spmd.reading import CONSTRAINT, RESULT, Key, Stated
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


class Decision(NamedTuple):
    """Who decided about parts of a dimension."""

    dimension: int
    parts: Axes
    link: Link | None
    """None: the text states them."""
    source: int
    """The array that had them; -1 where the text states them."""


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


class _Engine:
    def __init__(self, links: Links, stated: Stated, module: Module) -> None:
        self.links, self.stated, self.module = links, stated, module
        self.axes = stated.axes
        count = len(links.shapes)
        self.dimensions: list[list[Axes]] = [[()] * len(s.dimensions) for s in links.shapes]
        self.closed: list[tuple[bool, ...]] = [(False,) * len(s.dimensions) for s in links.shapes]
        self.used = [0] * count
        self.base: list[AxisSharding | None] = [None] * count
        self.hidden: dict[int, AxisSharding] = {}
        """Sharding as stated, of arrays with dimensions that are not seen yet."""
        self.decisions: list[list[Decision]] = [[] for _ in range(count)]
        self.waiting: list[dict[int, None]] = [{} for _ in range(_ROUNDS)]
        """Links to look at, for each round."""
        self.touched: list[int] = []
        """Links that came to wait since a link was looked at."""
        self.places = links.places
        self.all_links = list(links.links)
        self.priorities: set[int] = {0}
        self._state()
        self._borders()
        self._constraints()
        self._manual_regions()
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

    # ---- what the text states ---------------------------------------------------------------

    def _state(self) -> None:
        for key, shardings in self.stated.shardings.items():
            for array, sharding in zip(self.links.results.get(key, ()), shardings, strict=False):
                if sharding is not None:
                    self._give(array, sharding)

    def _give(self, array: int, sharding: AxisSharding, link: Link | None = None) -> None:
        self.base[array] = sharding
        self.used[array] = sharding.used
        self.closed[array] = sharding.closed
        if any(sharding.priorities):
            self.hidden[array] = sharding
            self.priorities.update(sharding.priorities)
            seen = [p == 0 for p in sharding.priorities]
            self.closed[array] = tuple(
                c or not s for c, s in zip(sharding.closed, seen, strict=True)
            )
        else:
            seen = [True] * len(sharding.dimensions)
        for d, (parts, is_seen) in enumerate(zip(sharding.dimensions, seen, strict=True)):
            if is_seen:
                self.dimensions[array][d] = parts
            if parts:
                source = link.arrays[-1] if link else -1
                self.decisions[array].append(Decision(d, parts, link, source))

    def _borders(self) -> None:
        """Give values at the borders of manual regions their stated shardings.

        Outside, manual axes divide what they are stated to divide, and nothing else. Inside, the
        parts that are manual are taken away, and bar all others from their use.
        GSPMD's state the one side, that of the result.
        """
        for (name, position), results in self.links.results.items():
            op = self.module.computation[name].instructions[position]
            target = op.attributes.text("custom_call_target")
            if target in (GSPMD_IN, GSPMD_OUT):
                given = self.links.results[name, op.operands[0]]
                for array, own in zip(given, results, strict=True):
                    outside, inside = (array, own) if target == GSPMD_IN else (own, array)
                    region = self.base[inside]
                    if self.base[outside] is not None:
                        manual = region.manual if region is not None else 0
                        self.used[outside] |= manual or self.axes.everything
                    rule = region_rule(self.links.shapes[array], self.links.shapes[own])
                    self.all_links.append(Link((name, position), rule, (array, own), "region"))
        for key, border in self.stated.borders.items():
            name, position = key
            if key not in self.links.results:
                continue
            op = self.module.computation[name].instructions[position]
            results = self.links.results[key]
            operands = tuple(a for i in op.operands for a in self.links.results[name, i])
            for number, stated in enumerate(border.wholes):
                whole = replace(stated, replicated=stated.replicated | border.manual)
                inner = _inside(whole, border.manual)
                result = results[number]
                self._give(result, inner if border.enters else whole)
                taken = self._pseudo(key, operands[number], whole if border.enters else inner)
                rule = region_rule(self.links.shapes[taken], self.links.shapes[result])
                self.all_links.append(Link(key, rule, (taken, result), "region"))

    def _pseudo(self, key: Key, array: int, sharding: AxisSharding) -> int:
        """State what a border takes, as an array of its own that the operand is linked with."""
        shape = self.links.shapes[array]
        self.links.shapes.append(shape)
        self.links.owners.append((key, 0))
        self.dimensions.append([()] * len(shape.dimensions))
        self.closed.append(())
        self.used.append(0)
        self.base.append(None)
        self.decisions.append([])
        new = len(self.links.shapes) - 1
        self._give(new, sharding)
        self.all_links.append(Link(key, identity_rule(shape), (array, new), "border"))
        return new

    def _constraints(self) -> None:
        """Give the operand of a constraint its sharding where nothing else is said of it.

        Not where two constraints of one value say different things, or where it is not closed.
        """
        wanted: dict[int, dict[AxisSharding, Link]] = {}
        for link in self.all_links:
            sharding = self.base[link.arrays[-1]]
            if sharding is not None and self._constrains(link):
                wanted.setdefault(link.arrays[0], {})[sharding] = link
        for array, each in wanted.items():
            (sharding, link), *others = each.items()
            if others or self.base[array] is not None or not all(sharding.closed):
                continue
            if not any(sharding.priorities) and sharding.device < 0 and not sharding.unreduced:
                self._give(array, sharding, link)

    def _constrains(self, link: Link) -> bool:
        """Whether an op hands its operand on and states how it is divided."""
        if link.opcode != "custom-call":
            return link.opcode == "border"
        name, position = link.key
        op = self.module.computation[name].instructions[position]
        return op.attributes.text("custom_call_target") in (CONSTRAINT, RESULT)

    def _manual_regions(self) -> None:
        """Bar manual parts from the use of all values of their regions, from op to op."""
        users: dict[int, list[int]] = {}
        for link in self.all_links:
            if link.opcode not in ("border", "region"):
                for array in link.arrays:
                    users.setdefault(array, []).extend(link.arrays)
        marked = [a for a, s in enumerate(self.base) if s is not None and s.manual]
        todo = list(marked)
        seen = set(marked)
        while todo:
            array = todo.pop()
            own = self.base[array]
            manual = own.manual if own is not None else 0
            for other in users.pop(array, ()):
                if other in seen:
                    continue
                seen.add(other)
                known = self.base[other]
                rank = len(self.links.shapes[other].dimensions)
                known = known or AxisSharding(((),) * rank, (False,) * rank)
                self.base[other] = replace(known, manual=known.manual | manual)
                self.used[other] |= manual
                todo.append(other)

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


def _inside(whole: AxisSharding, manual: int) -> AxisSharding:
    """Return the sharding of a block in a manual region: without the parts that are manual."""
    dimensions = tuple(tuple(p for p in d if not manual >> p & 1) for d in whole.dimensions)
    replicated = whole.replicated & ~manual
    return replace(whole, dimensions=dimensions, manual=manual, replicated=replicated)


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
