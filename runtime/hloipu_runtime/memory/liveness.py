"""Live ranges of variables.

Backwards over each region, as in any text on data flow (Aho, Lam, Sethi, Ullman: Compilers, 9.2),
but by variable: a variable costs as much as it is touched, however long it lives.
"""

from bisect import bisect_right
from typing import NamedTuple

from hloipu_runtime.memory.regions import Item, Region, region_of
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import Step, VariableId

_ALWAYS_LIVE = frozenset({Role.CONSTANT, Role.STATE, Role.BUFFER})

Range = tuple[int, int]
"""First point and last point."""
Ranges = tuple[Range, ...]


class Liveness(NamedTuple):
    """The points of a program, and at which of them each variable takes memory."""

    points: int
    ranges: tuple[Ranges, ...]
    """Of each variable, in order, neither touching nor overlapping; none: it is never used."""
    region: Region

    def always(self, variable: VariableId) -> bool:
        """Whether a variable takes memory at every point."""
        return self.ranges[variable] == ((0, self.points - 1),)


def liveness_of(program: Program) -> Liveness:
    """Return when each variable of a program takes memory.

    Constants, state and buffers of streams always do. At one step, all that it reads and writes
    does; through a loop, all that is carried; of alternatives, each takes only what it needs
    itself or lets pass.
    """
    region = region_of(program)
    points = max(1, region.length)
    ranges_by_variable: list[list[Range]] = [[] for _ in program.variables]
    _walk(region, 0, frozenset(), ranges_by_variable)
    ranges = [
        ((0, points - 1),)
        if v.role in _ALWAYS_LIVE
        else ()
        if v.role is Role.REMOTE
        else merged(parts)
        for v, parts in zip(program.variables, ranges_by_variable, strict=True)
    ]
    return Liveness(points, tuple(ranges), region)


class Moment(NamedTuple):
    """One point: the path of its step in the tree, and the step."""

    path: str
    step: Step | None


def moment(region: Region, point: int, path: str = "body") -> Moment:
    """Return the step at a point of a region, and its path as the verifier writes it."""
    while True:
        number = bisect_right(region.items, point, key=lambda item: item.offset) - 1
        if number < 0:
            return Moment(path, None)
        item = region.items[number]
        path += item.path
        point -= item.offset
        if not item.children:
            return Moment(path, item.step)
        number = 0
        while point >= item.children[number][1].length:
            point -= item.children[number][1].length
            number += 1
        suffix, region = item.children[number]
        path += suffix


def merged(parts: list[Range]) -> Ranges:
    """Return the same points in as few ranges as can be."""
    if len(parts) < 2:
        return tuple(parts)
    parts.sort()
    joined = [parts[0]]
    for first, last in parts[1:]:
        if first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)


def _walk(
    region: Region,
    base: int,
    live_after: frozenset[VariableId],
    ranges_by_variable: list[list[Range]],
) -> None:
    """Add the ranges of all that a region touches, from what is live after it."""
    items = region.items
    alive: list[set[VariableId] | None] = [set() if item.children else None for item in items]
    for variable, numbers in region.items_by_variable(live_after).items():
        _variable(
            region,
            base,
            variable,
            numbers,
            variable in live_after,
            alive,
            ranges_by_variable[variable],
        )
    for item, after in zip(items, alive, strict=True):
        if after is not None:
            _inside(item, base + item.offset, after, ranges_by_variable)


def _variable(
    region: Region,
    base: int,
    variable: VariableId,
    numbers: list[int],
    live: bool,
    alive: list[set[VariableId] | None],
    ranges: list[Range],
) -> None:
    """Add a variable's ranges outside of the inner regions; note where it is live after those."""
    end = base + region.length - 1
    for number in reversed(numbers):
        item = region.items[number]
        first = base + item.offset
        last = first + item.length - 1
        exposed, killed = variable in item.exposed, variable in item.killed
        after = alive[number]
        if after is None:
            if exposed:
                end, live = (end if live else last), True
            else:
                ranges.append((first, end if live else last))
                live = False
            continue
        if live:
            after.add(variable)
            ranges.append((last, end))
        end, live = first - 1, exposed or (live and not killed)
    if live and base <= end:
        ranges.append((base, end))


def _inside(
    item: Item, base: int, after: set[VariableId], ranges_by_variable: list[list[Range]]
) -> None:
    """Add the ranges within an item that has regions."""
    for variable in item.forced:
        ranges_by_variable[variable].append((base, base + item.length - 1))
    if item.repeats:
        after |= item.children[0][1].exposed
    for _, child in item.children:
        if not child.length:
            continue
        for variable in after - child.touched:  # which an alternative touches
            ranges_by_variable[variable].append((base, base + child.length - 1))
        _walk(child, base, child.touched & after, ranges_by_variable)
        base += child.length
