"""Shardings that a text states, array by array: what propagation begins with.

Parts of a later priority are hidden until their turn. Manual regions have borders, inside of which
manual axes are barred, and values of which have the shardings that the border states.
"""

from dataclasses import replace
from typing import NamedTuple

from hloipu_compiler.ir.annotations import GSPMD_IN, GSPMD_OUT
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.spmd.axes import Axes, AxisSharding
from hloipu_compiler.partition.spmd.links import Link, Links, identity_rule, region_rule
from hloipu_compiler.partition.spmd.reading import CONSTRAINT, RESULT, Key, Stated


class Decision(NamedTuple):
    """Who decided about parts of a dimension."""

    dimension: int
    parts: Axes
    link: Link | None
    """None: the text states them."""
    source: int
    """The array that had them; -1 where the text states them."""


class StatedShardings:
    """Shardings of all arrays as far as the text states them, before any spreads."""

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
        self.all_links = list(links.links)
        self.priorities: set[int] = {0}
        self._state()
        self._borders()
        self._constraints()
        self._manual_regions()

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


def _inside(whole: AxisSharding, manual: int) -> AxisSharding:
    """Return the sharding of a block in a manual region: without the parts that are manual."""
    dimensions = tuple(tuple(p for p in d if not manual >> p & 1) for d in whole.dimensions)
    replicated = whole.replicated & ~manual
    return replace(whole, dimensions=dimensions, manual=manual, replicated=replicated)
